// Depthwise convolutions of few channels, such as image filters: with channels last, a vector would
// be nearly empty. Here it holds neighbouring positions of a row, plane by plane.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include "backward.h"

namespace {

template <typename T>
bool worth_planes(const Geometry& g, const Tensor& similarity) {
  return g.depthwise() && !g.full && !g.shared && g.factor_w == g.out_w && !g.taps_last &&
      g.stride_w == 1 && g.channels < Vec<T>::size() && g.out_w >= Vec<T>::size() &&
      similarity.stride(-1) == 1;
}

// y[q] += weight * (m[q] * x[q])
template <typename T>
inline void add_weighted(T* y, T weight, const T* m, const T* x, int64_t size) {
  constexpr int width = Vec<T>::size();
  int64_t q = 0;
  for (; q + width <= size; q += width) {
    const Vec<T> product = Vec<T>::loadu(m + q) * Vec<T>::loadu(x + q);
    at::vec::fmadd(Vec<T>(weight), product, Vec<T>::loadu(y + q)).store(y + q);
  }
  for (; q < size; ++q) {
    y[q] += weight * (m[q] * x[q]);
  }
}

// The same backward: adds to the gradients of m and x, and returns that of the weight.
template <typename T>
inline T reverse_weighted(const T* gy, T weight, const T* m, const T* x, T* gm, T* gx,
                          int64_t size) {
  constexpr int width = Vec<T>::size();
  const Vec<T> factor(weight);
  Vec<T> lanes(T(0));
  int64_t q = 0;
  for (; q + width <= size; q += width) {
    const Vec<T> upper = Vec<T>::loadu(gy + q), value = Vec<T>::loadu(x + q);
    const Vec<T> spread = factor * upper, similarity = Vec<T>::loadu(m + q);
    at::vec::fmadd(spread, value, Vec<T>::loadu(gm + q)).store(gm + q);
    at::vec::fmadd(spread, similarity, Vec<T>::loadu(gx + q)).store(gx + q);
    lanes = at::vec::fmadd(upper, similarity * value, lanes);
  }
  T sum = sum_of(lanes);
  for (; q < size; ++q) {
    gm[q] += weight * gy[q] * x[q];
    gx[q] += weight * gy[q] * m[q];
    sum += gy[q] * (m[q] * x[q]);
  }
  return sum;
}

// The planes of one image, with zeros around them.
template <typename T>
class Planes {
 public:
  explicit Planes(const Geometry& g)
      : g_(g), width_(g.width + 2 * g.pad_w), height_(g.height + 2 * g.pad_h),
        memory_(g.channels * width_ * height_) {}

  void load(const T* x) {
    std::fill(memory_.begin(), memory_.end(), T(0));
    for (int64_t row = 0; row < g_.channels * g_.height; ++row) {
      std::copy_n(x + row * g_.width, g_.width, inner(row));
    }
  }
  void clear() { std::fill(memory_.begin(), memory_.end(), T(0)); }
  void store(T* x) {
    for (int64_t row = 0; row < g_.channels * g_.height; ++row) {
      std::copy_n(inner(row), g_.width, x + row * g_.width);
    }
  }

  // What lies under a tap, along an output row.
  T* under(int64_t channel, int64_t row, int64_t tap) {
    const int64_t top = row * g_.stride_h + tap / g_.kernel_w * g_.dilation_h;
    return &memory_[(channel * height_ + top) * width_ + tap % g_.kernel_w * g_.dilation_w];
  }

 private:
  T* inner(int64_t row) {
    const int64_t channel = row / g_.height, top = row % g_.height + g_.pad_h;
    return &memory_[(channel * height_ + top) * width_ + g_.pad_w];
  }

  const Geometry& g_;
  int64_t width_, height_;
  std::vector<T> memory_;
};

// Calls f(channel, output row, tap) for one image, so that a row of similarities is used by all its
// channels at once.
template <typename F>
void for_each_row(const Geometry& g, const F& f) {
  for (int64_t p = 0; p < g.out_h; ++p) {
    for (int64_t k = 0; k < g.taps(); ++k) {
      for (int64_t c = 0; c < g.channels; ++c) {
        f(c, p, k);
      }
    }
  }
}

// Where the similarities of a row begin.
template <typename T>
const T* factors_of(const Geometry& g, const Tensor& m, int64_t n, int64_t c, int64_t p,
                    int64_t k) {
  const int64_t entry = c * g.similarity_groups / g.channels * g.taps() + k;
  const int64_t row = g.factor_h == 1 ? 0 : p * m.stride(2);
  return m.const_data_ptr<T>() + n * m.stride(0) + entry * m.stride(1) + row;
}

// All tensors but the similarity are contiguous.
template <typename T>
void forward_planes(const Geometry& g, const Tensor& input, const Tensor& weight,
                    const Tensor& similarity, Tensor& output) {
  const T* w = weight.const_data_ptr<T>();
  at::parallel_for(0, g.batch, 1, [&](int64_t begin, int64_t end) {
    Planes<T> planes(g);
    for (int64_t n = begin; n < end; ++n) {
      planes.load(input.const_data_ptr<T>() + n * g.channels * g.height * g.width);
      T* y = output.mutable_data_ptr<T>() + n * g.channels * g.places();
      std::fill_n(y, g.channels * g.places(), T(0));
      for_each_row(g, [&](int64_t c, int64_t p, int64_t k) {
        add_weighted(y + c * g.places() + p * g.out_w, w[c * g.taps() + k],
                     factors_of<T>(g, similarity, n, c, p, k), planes.under(c, p, k), g.out_w);
      });
    }
  });
}

// All gradients are computed; those that are not needed are small, and dropped.
template <typename T>
void backward_planes(const Geometry& g, const Tensor& grad_output, const Tensor& input,
                     const Tensor& weight, const Tensor& similarity, Wanted wanted, Tensor& gx,
                     Tensor& gw, Tensor& gm) {
  const T* w = weight.const_data_ptr<T>();
  const int64_t slots = std::min<int64_t>(at::get_num_threads(), g.batch);
  const Tensor partial = at::zeros({slots, weight.numel()}, weight.options());
  const Tensor to_x = at::empty(input.sizes(), input.options());
  const Tensor to_m = wanted.similarity ? gm : at::empty(similarity.sizes(), input.options());
  to_m.zero_();
  at::parallel_for(0, slots, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      Planes<T> planes(g), gradients(g);
      T* to_w = partial.mutable_data_ptr<T>() + slot * weight.numel();
      const Range mine = share(g.batch, slots, slot, 1);
      for (int64_t n = mine.begin; n < mine.end; ++n) {
        const int64_t sample = n * g.channels * g.height * g.width;
        planes.load(input.const_data_ptr<T>() + sample);
        gradients.clear();
        const T* gy = grad_output.const_data_ptr<T>() + n * g.channels * g.places();
        for_each_row(g, [&](int64_t c, int64_t p, int64_t k) {
          to_w[c * g.taps() + k] += reverse_weighted(
              gy + c * g.places() + p * g.out_w, w[c * g.taps() + k],
              factors_of<T>(g, similarity, n, c, p, k), planes.under(c, p, k),
              const_cast<T*>(factors_of<T>(g, to_m, n, c, p, k)), gradients.under(c, p, k),
              g.out_w);
        });
        gradients.store(to_x.mutable_data_ptr<T>() + sample);
      }
    }
  });
  if (wanted.input) {
    gx = to_x;
  }
  if (wanted.weight) {
    gw.copy_(partial.sum(0).view(gw.sizes()));
  }
}

}  // namespace
