// Backward through a layer of an episode, for one image.
//
// Pooling and ReLU leave less than a quarter of the map's gradient nonzero: only these elements,
// the *entries* of an image, are visited.  The entries e at a position l of the map, each of an
// output o and with a gradient g, give the gradient of the patch there,
//
//   V[l] = sum_e g[e] W[o[e]],
//
// in registers.  It is added to the gradient of the input (times m), and its products with the
// patch add up to the gradient of m.  Where nothing needs V, or every episode has its own weight,
// the gradient of the weight is the sum of g[e] times the patch, also in registers.
#pragma once

#include "episode_layer.h"

namespace {

// The elements of an image's gradient that are not zero, by position of the map.
template <typename T>
class Entries {
 public:
  explicit Entries(const EpisodeLayer& g)
      : starts_(g.places() * kNowhere + 1), outputs_(g.map_size()), gradients_(g.map_size()),
        some_((kNowhere + 1) * g.outputs) {}

  void collect(const EpisodeLayer& g, const T* gradient, int64_t gradient_row, const T* scale,
               const Route<T>* route) {
    int64_t total = 0, position = 0;
    for (int64_t p = 0; p < g.out_h; ++p) {
      for (int64_t q = 0; q < g.out_w; ++q, route += g.outputs) {
        const T* from = gradient + p * gradient_row + q * g.outputs;
        int64_t counts[kNowhere + 1] = {};
        for (int64_t o = 0; o < g.outputs; ++o) {  // no branch: it would be unpredictable
          some_[route[o] * g.outputs + counts[route[o]]++] = static_cast<int32_t>(o);
        }
        for (int64_t place = 0; place < kNowhere; ++place) {
          starts_[position++] = total;
          for (int64_t i = 0; i < counts[place]; ++i, ++total) {
            const int32_t o = some_[place * g.outputs + i];
            outputs_[total] = o;
            gradients_[total] = from[o] * scale[o];
          }
        }
      }
    }
    starts_[position] = total;
  }

  // Calls f(patch, entries' outputs, gradients, their number) for every position with entries.
  template <typename F>
  void visit(const EpisodeLayer& g, const F& f) const {
    const int64_t* start = starts_.data();
    for (int64_t p = 0; p < g.out_h; ++p) {
      for (int64_t q = 0; q < g.out_w; ++q) {
        for (int64_t place = 0; place < kNowhere; ++place, ++start) {
          if (start[1] > start[0]) {
            f(g.patch(p, q, place), outputs_.data() + start[0], gradients_.data() + start[0],
              start[1] - start[0]);
          }
        }
      }
    }
  }

 private:
  std::vector<int64_t> starts_;
  std::vector<int32_t> outputs_;
  std::vector<T> gradients_;
  std::vector<int32_t> some_;
};

// The operands and results of reverse_patches. The slab's part of: weights; and, if they are
// shared, factors of the elements of a kernel, products of V and patch.
template <typename T>
struct PatchGradient {
  const T* padded;
  const T* weight;
  const T* factors;
  T* products;
  T* grad_padded;
};

// Offset(v) is that of the slab's vector v in a patch.
template <typename T, int N, bool Shared, typename Offset>
void reverse_patches(const EpisodeLayer& g, const Entries<T>& entries, const Offset& offset,
                     const PatchGradient<T>& r) {
  constexpr int width = Vec<T>::size();
  const T *weight = r.weight, *factors = r.factors, *padded = r.padded;
  T *products = r.products, *grad_padded = r.grad_padded;
  entries.visit(g, [=](int64_t at, const int32_t* outputs, const T* gradients, int64_t count) {
    Vec<T> patch[N];
    const Vec<T> first(gradients[0]);
#pragma GCC unroll 12
    for (int v = 0; v < N; ++v) {
      patch[v] = first * Vec<T>::loadu(weight + outputs[0] * (N * width) + v * width);
    }
    for (int64_t i = 1; i < count; ++i) {
      const Vec<T> gradient(gradients[i]);
      const T* from = weight + outputs[i] * (N * width);
#pragma GCC unroll 12
      for (int v = 0; v < N; ++v) {
        patch[v] = at::vec::fmadd(gradient, Vec<T>::loadu(from + v * width), patch[v]);
      }
    }
    const T* x = padded + at;
    T* to = grad_padded + at;
#pragma GCC unroll 12
    for (int v = 0; v < N; ++v) {
      const Vec<T> before = Vec<T>::loadu(to + offset(v));
      if constexpr (Shared) {
        T* sum = products + v * width;
        at::vec::fmadd(patch[v], Vec<T>::loadu(x + offset(v)), Vec<T>::loadu(sum)).store(sum);
        at::vec::fmadd(patch[v], Vec<T>::loadu(factors + v * width), before).store(to + offset(v));
      } else {
        (patch[v] + before).store(to + offset(v));
      }
    }
  });
}

template <typename T, int N>
bool is_one_row(const int64_t* offsets) {
  return N == kSlab && offsets[N - 1] == offsets[0] + (N - 1) * Vec<T>::size();
}

// For a whole slab in one row of the kernel, the compiler knows the offsets.
template <typename T, int N, bool Shared>
void reverse_slab(const EpisodeLayer& g, const Entries<T>& entries, const int64_t* offsets,
                  PatchGradient<T> r) {
  constexpr int64_t width = Vec<T>::size();
  if (is_one_row<T, N>(offsets)) {
    r.padded += offsets[0], r.grad_padded += offsets[0];
    reverse_patches<T, N, Shared>(g, entries, [](int64_t v) { return v * width; }, r);
  } else {
    reverse_patches<T, N, Shared>(g, entries, [=](int64_t v) { return offsets[v]; }, r);
  }
}

// Adds the gradient of the slab's weights, U outputs at a time.
template <typename T, int N, int U, typename Offset>
void reverse_outputs(const EpisodeLayer& g, const Offset& offset, const T* padded,
                     const T* gradient, int64_t gradient_row, const T* scale,
                     const Route<T>* route, T* grad_weight) {
  constexpr int width = Vec<T>::size();
  int64_t places[kNowhere + 1] = {};
  for (int64_t place = 0; place < kNowhere; ++place) {
    places[place] = g.patch(0, 0, place);
  }
  const int64_t outputs = g.outputs, step = g.window * g.channels, count = g.places();
  const int64_t next_gradient = gradient_row - g.out_w * outputs;
  const int64_t next_patch = g.window * g.row() - g.out_w * step;
  Vec<T> sum[U][N];
#pragma GCC unroll 12
  for (int i = 0; i < U * N; ++i) {
    sum[i / N][i % N] = Vec<T>::loadu(grad_weight + i * width);
  }
  int64_t end = g.out_w;
  for (int64_t l = 0; l < count; ++l) {  // one loop over all positions, see conv_tile
    if (l == end) {
      end += g.out_w;
      gradient += next_gradient;
      padded += next_patch;
    }
#pragma GCC unroll 2
    for (int u = 0; u < U; ++u) {
      const Vec<T> factor(route[u] == kNowhere ? T(0) : gradient[u] * scale[u]);
      const T* patch = padded + places[route[u]];
#pragma GCC unroll 12
      for (int v = 0; v < N; ++v) {
        sum[u][v] = at::vec::fmadd(factor, Vec<T>::loadu(patch + offset(v)), sum[u][v]);
      }
    }
    padded += step, gradient += outputs, route += outputs;
  }
#pragma GCC unroll 12
  for (int i = 0; i < U * N; ++i) {
    sum[i / N][i % N].store(grad_weight + i * width);
  }
}

template <typename T, int N, typename Offset>
void reverse_all_outputs(const EpisodeLayer& g, const Offset& offset, const T* padded,
                         const T* gradient, int64_t gradient_row, const T* scale,
                         const Route<T>* route, T* grad_weight) {
  constexpr int U = 2 * N <= kSlab ? 2 : 1;
  int64_t o = 0;
  for (; o + U <= g.outputs; o += U) {
    reverse_outputs<T, N, U>(g, offset, padded, gradient + o, gradient_row, scale + o, route + o,
                             grad_weight + o * N * Vec<T>::size());
  }
  for (; o < g.outputs; ++o) {
    reverse_outputs<T, N, 1>(g, offset, padded, gradient + o, gradient_row, scale + o, route + o,
                             grad_weight + o * N * Vec<T>::size());
  }
}

// Whether a slab is three rows of two vectors, as in the 3 x 3 kernels of colour images.
template <typename T, int N>
bool is_three_rows(const int64_t* offsets) {
  if constexpr (N == 6) {
    const int64_t width = Vec<T>::size(), row = offsets[2];
    return offsets[0] == 0 && offsets[1] == width && offsets[3] == row + width &&
        offsets[4] == 2 * row && offsets[5] == 2 * row + width;
  }
  return false;
}

// For these two kinds of slabs, the compiler knows the offsets.
template <typename T, int N>
void reverse_weights(const EpisodeLayer& g, const int64_t* offsets, const T* padded,
                     const T* gradient, int64_t gradient_row, const T* scale,
                     const Route<T>* route, T* grad_weight) {
  constexpr int64_t width = Vec<T>::size();
  const auto reverse = [&](const auto& offset) {
    reverse_all_outputs<T, N>(g, offset, padded, gradient, gradient_row, scale, route, grad_weight);
  };
  if (is_one_row<T, N>(offsets)) {
    padded += offsets[0];
    reverse([](int64_t v) { return v * width; });
  } else if (is_three_rows<T, N>(offsets)) {
    const int64_t row = offsets[2 % N];
    reverse([=](int64_t v) { return v / 2 * row + v % 2 * width; });
  } else {
    reverse([=](int64_t v) { return offsets[v]; });
  }
}

// Calls f with the number of vectors of a slab as a constant.
template <int N, typename F>
void with_slab(int64_t size, const F& f) {
  if constexpr (N > 0) {
    if (size == N) {
      f(std::integral_constant<int, N>());
    } else {
      with_slab<N - 1>(size, f);
    }
  }
}

}  // namespace
