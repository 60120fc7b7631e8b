// The backward pass with one similarity per image.
//
// With the kernels of an image, V = M^T W, its gradients are those of a plain convolution. That of
// V, called T, is computed from the unweighted patches, and gives both others:
//   gM[i, j] = <W[i], T[j]>,  gW[i] += sum_j M[i, j] T[j]
// The gradient of the input is a convolution of the output's gradient with the flipped V.
// The only work per position is the multiply-adds of these two convolutions.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "backward.h"
#include "image_turned.h"

namespace {

// Rows of T for V vectors of outputs: sum over positions of x * gy, held in registers. Row r is the
// element of a patch at offsets[r]; if rows are channels of one tap, at offsets[0] + r, which needs
// no register for each.
template <typename T, int R, int V, bool OneTap>
inline void gradient_tile(const T* x, const int64_t* places, int64_t count, const int64_t* offsets,
                          const T* gy, int64_t gy_row, T* to, bool add) {
  constexpr int width = Vec<T>::size();
  Vec<T> sum[R][V];
  int64_t offset[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    offset[r] = OneTap ? offsets[0] + r : offsets[r];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      sum[r][v] = Vec<T>(T(0));
    }
  }
  for (int64_t i = 0; i < count; ++i, gy += gy_row) {
    const T* patch = x + places[i];
    Vec<T> upper[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      upper[v] = Vec<T>::loadu(gy + v * width);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec<T> element(patch[offset[r]]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        sum[r][v] = at::vec::fmadd(element, upper[v], sum[r][v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      T* place = to + r * kColumns<T> + v * width;
      (add ? Vec<T>::loadu(place) + sum[r][v] : sum[r][v]).store(place);
    }
  }
}

// The most rows of a tile: with one vector of outputs, registers are left for more.
template <int V>
constexpr int kGradientRows = V == 1 ? kRows * 4 / 3 : kRows;

// The same for `rows` of at most R rows.
template <typename T, int V, bool OneTap, int R = kGradientRows<V>>
void gradient_rows(int64_t rows, const T* x, const int64_t* places, int64_t count,
                   const int64_t* offsets, const T* gy, int64_t gy_row, T* to, bool add) {
  if constexpr (R > 1) {
    if (rows < R) {
      gradient_rows<T, V, OneTap, R - 1>(rows, x, places, count, offsets, gy, gy_row, to, add);
      return;
    }
  }
  gradient_tile<T, R, V, OneTap>(x, places, count, offsets, gy, gy_row, to, add);
}

// Returns <weight, gradient>, and adds scale * gradient to gw, unless null. The size is a multiple
// of kColumns.
template <typename T>
inline T dot_and_add(const T* weight, const T* gradient, T scale, T* gw, int64_t size) {
  constexpr int width = Vec<T>::size();
  const Vec<T> factor(scale);
  Vec<T> sums[2] = {Vec<T>(T(0)), Vec<T>(T(0))};
  for (int64_t i = 0; i < size; i += kColumns<T>) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const int64_t place = i + v * width;
      const Vec<T> value = Vec<T>::loadu(gradient + place);
      sums[v] = at::vec::fmadd(Vec<T>::loadu(weight + place), value, sums[v]);
      if (gw) {
        at::vec::fmadd(factor, value, Vec<T>::loadu(gw + place)).store(gw + place);
      }
    }
  }
  return sum_of(sums[0] + sums[1]);
}

// The same for several gradients of one column tile each, as many as a vector holds. Their sums are
// computed together: one by one they would take as long as the products.
template <typename T>
inline Vec<T> dot_and_add_tiles(const T* weight, const T* gradient, const T* scales, T* gw) {
  constexpr int width = Vec<T>::size();
  Vec<T> sums[width];
  for (int i = 0; i < width; ++i) {
    const Vec<T> factor(scales[i]);
    sums[i] = Vec<T>(T(0));
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const int64_t place = i * kColumns<T> + v * width;
      const Vec<T> value = Vec<T>::loadu(gradient + place);
      sums[i] = at::vec::fmadd(Vec<T>::loadu(weight + place), value, sums[i]);
      if (gw) {
        at::vec::fmadd(factor, value, Vec<T>::loadu(gw + place)).store(gw + place);
      }
    }
  }
  return sums_of<T, width>(sums);
}

// Computes the gradients of weight and similarity, a tile of outputs at a time.
template <typename T>
class KernelGradientWorker {
 public:
  KernelGradientWorker(const Geometry& g, const PackedWeight<T>& weight,
                       const SimilarityView<T>& view, Wanted wanted, T* memory, T* gw, T* gm)
      : g_(g), weight_(weight), view_(view), wanted_(wanted), gradient_(memory),
        packed_gy_(memory + tile_size(g)),
        bands_(g, packed_gy_ + Bands<T>::most_places(g) * kColumns<T>, true), gw_(gw), gm_(gm) {
    for (int64_t k = 0; k < g.taps(); ++k) {
      for (int64_t c = 0; c < g.group_channels(); ++c) {
        offsets_.push_back(bands_.taps()[k] + c);
        tap_of_.push_back(k);
      }
    }
    for (int64_t lane = 0; !g.full && lane < g.lanes; ++lane) {
      entries_.push_back(lane * g.similarity_groups / g.lanes * g.taps());
    }
  }

  static int64_t size(const Geometry& g) {
    return tile_size(g) + Bands<T>::most_places(g) * kColumns<T> + Bands<T>::size(g);
  }

  // Elements of gw: [group][tile of outputs][tap][channel][output in tile], as the packed weights.
  static int64_t weight_size(const Geometry& g) {
    return g.groups * ceil_div(g.group_outputs(), kColumns<T>) * tile_size(g);
  }

  void run(Range batch, const T* gy, const T* x) {
    const int64_t tiles = ceil_div(g_.group_outputs(), kColumns<T>);
    bands_.for_each(batch, x, [&](Range images, Range rows) {
      const int64_t count = (rows.end - rows.begin) * g_.out_w;
      for (int64_t i = 0; i < g_.groups * tiles; ++i) {
        const int64_t group = i / tiles, o = i % tiles * kColumns<T>;
        for (int64_t n = images.begin; n < images.end; ++n) {
          const T* upper = gy + (n * g_.places() + rows.begin * g_.out_w) * g_.outputs +
              group * g_.group_outputs() + o;
          const T* patches = bands_.of(n) + group * g_.group_channels();
          const int64_t left = g_.group_outputs() - o, columns = tile_columns<T>(left);
          if (columns < kColumns<T>) {
            std::fill_n(gradient_, tile_size(g_), T(0));  // past the edge, where nothing is written
          }
          int64_t upper_row = g_.outputs;
          if (upper_row > kColumns<T> || columns > left) {
            pack(upper, count, std::min(left, kColumns<T>));
            upper = packed_gy_, upper_row = kColumns<T>;
          }
          if (columns == kColumns<T>) {
            find_gradient<2>(patches, count, upper, upper_row);
          } else {
            find_gradient<1>(patches, count, upper, upper_row);
          }
          use_gradient(n, group, i % tiles);
        }
      }
    });
  }

 private:
  // Positions at a time: few enough that patches and gradients stay in the first-level cache.
  static constexpr int64_t kPositions = 96;

  static int64_t tile_size(const Geometry& g) {
    return g.taps() * g.group_channels() * kColumns<T>;
  }
  int64_t tap_size() const { return g_.group_channels() * kColumns<T>; }

  // The output's gradient of a tile, without gaps between its rows, which are read again and again,
  // and with zeros past the edge.
  void pack(const T* gy, int64_t count, int64_t columns) {
    T* to = packed_gy_;
    for (int64_t i = 0; i < count; ++i, gy += g_.outputs, to += kColumns<T>) {
      std::copy_n(gy, columns, to);
      std::fill(to + columns, to + kColumns<T>, T(0));
    }
  }

  template <int V>
  void find_gradient(const T* x, int64_t count, const T* gy, int64_t gy_row) {
    constexpr int64_t kMost = kGradientRows<V>;
    const bool one_tap = 2 * g_.group_channels() >= kMost;
    const int64_t rows = g_.taps() * g_.group_channels(), cuts = ceil_div(count, kPositions);
    const int64_t parts = one_tap ? g_.taps() * ceil_div(g_.group_channels(), kMost)
                                  : ceil_div(rows, kMost);
    for (int64_t cut = 0; cut < cuts; ++cut) {
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t first = rows * part / parts, last = rows * (part + 1) / parts;
        const Range some = bands_.facing(count * cut / cuts, count * (cut + 1) / cuts,
                                         tap_of_[first], tap_of_[last - 1] + 1);
        const auto find = one_tap ? gradient_rows<T, V, true> : gradient_rows<T, V, false>;
        find(last - first, x, bands_.places() + some.begin, some.end - some.begin,
             &offsets_[first], gy + some.begin * gy_row, gy_row, gradient_ + first * kColumns<T>,
             cut > 0);
      }
    }
  }

  // From T, for one tile of outputs.
  void use_gradient(int64_t n, int64_t group, int64_t tile) {
    const T* weight = weight_.outputs(group, tile, 0);
    const T* factors = view_.image(g_, n);
    T* gm = gm_ + (g_.shared ? 0 : n) * g_.entries();
    T* gw = gw_ ? gw_ + (weight - weight_.outputs(0, 0, 0)) : nullptr;
    if (!g_.full) {
      use_diagonal(weight, factors, group, gw, gm);
      return;
    }
    if (wanted_.similarity) {
      add_matrix_gradient(weight, gm);
    }
    for (int64_t c = 0; wanted_.weight && c < tap_size(); c += kColumns<T>) {
      product({factors, g_.taps(), 1}, g_.taps(), gradient_ + c, tap_size(), g_.taps(), gw + c,
              tap_size(), kColumns<T>, true);
    }
  }

  void use_diagonal(const T* weight, const T* factors, int64_t group, T* gw, T* gm) {
    const int64_t lanes = g_.panel_lanes(), size = tap_size() / lanes, first = g_.first_lane(group);
    const T* from = gradient_;
    const auto advance = [&](int64_t elements) {
      from += elements, weight += elements;
      gw = gw ? gw + elements : nullptr;
    };
    constexpr int width = Vec<T>::size();
    for (int64_t k = 0; k < g_.taps(); ++k, factors += g_.lanes) {
      int64_t lane = first;
      for (; size == kColumns<T> && lane + width <= first + lanes; lane += width) {
        T sums[width];
        dot_and_add_tiles(weight, from, factors + lane, gw).store(sums);
        for (int i = 0; i < width; ++i) {
          gm[entries_[lane + i] + k] += sums[i];
        }
        advance(width * size);
      }
      for (; lane < first + lanes; ++lane) {
        gm[entries_[lane] + k] += dot_and_add(weight, from, factors[lane], gw, size);
        advance(size);
      }
    }
  }

  void add_matrix_gradient(const T* weight, T* gm) {
    const int64_t taps = g_.taps();
    for (int64_t i = 0; i < taps; ++i) {
      int64_t j = 0;
      for (; j + 3 <= taps; j += 3) {
        add_dots<T, 1, 3>(gm + i * taps + j, taps, weight + i * tap_size(), tap_size(),
                          gradient_ + j * tap_size(), tap_size(), tap_size());
      }
      for (; j < taps; ++j) {
        add_dots<T, 1, 1>(gm + i * taps + j, taps, weight + i * tap_size(), tap_size(),
                          gradient_ + j * tap_size(), tap_size(), tap_size());
      }
    }
  }

  const Geometry& g_;
  const PackedWeight<T>& weight_;
  const SimilarityView<T>& view_;
  Wanted wanted_;
  T* gradient_;  // T, of one tile of outputs
  T* packed_gy_;
  Bands<T> bands_;
  T* gw_;
  T* gm_;
  std::vector<int64_t> offsets_;  // of (tap, channel) in a patch
  std::vector<int64_t> tap_of_;   // of (tap, channel)
  std::vector<int64_t> entries_;  // of a lane in gm, at tap 0
};

// gw and gm
template <typename T>
void kernel_gradients(const Geometry& g, const Tensor& grad_output, const Tensor& input,
                      const Tensor& weight, const SimilarityView<T>& view, Wanted wanted,
                      Tensor& gw, Tensor& gm) {
  using Worker = KernelGradientWorker<T>;
  const PackedWeight<T> packed(g, weight);
  const int64_t slots = std::min<int64_t>(at::get_num_threads(), g.batch);
  Scratch<T> scratch(input, slots, Worker::size(g));
  const int64_t gw_size = wanted.weight ? Worker::weight_size(g) : 0;
  const int64_t gm_size = g.entries() * (g.shared ? 1 : g.batch);
  const Tensor partial_gw = at::zeros({slots, gw_size}, input.options());
  // Each image has its own gradient; only a shared one is a sum over the workers.
  const Tensor partial_gm = at::zeros({g.shared ? slots : 1, gm_size}, input.options());
  const T* gy = grad_output.const_data_ptr<T>();
  const T* x = input.const_data_ptr<T>();
  at::parallel_for(0, slots, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      Worker worker(g, packed, view, wanted, scratch.slot(slot),
                    wanted.weight ? partial_gw.mutable_data_ptr<T>() + slot * gw_size : nullptr,
                    partial_gm.mutable_data_ptr<T>() + (g.shared ? slot * gm_size : 0));
      worker.run(share(g.batch, slots, slot, 1), gy, x);
    }
  });
  if (wanted.weight) {
    // [group][tile][tap][channel][output in tile] to (O, C/groups, K)
    const int64_t tiles = ceil_div(g.group_outputs(), kColumns<T>);
    const Tensor sum = partial_gw.sum(0).view(
        {g.groups, tiles, g.taps(), g.group_channels(), kColumns<T>});
    const Tensor ordered = sum.permute({0, 1, 4, 3, 2}).reshape(
        {g.groups, tiles * kColumns<T>, g.group_channels(), g.taps()});
    gw.copy_(ordered.narrow(1, 0, g.group_outputs()).reshape(gw.sizes()));
  }
  if (wanted.similarity) {
    gm.copy_(partial_gm.sum(0).view(gm.sizes()));
  }
}

// Whether this path is exact: with NaN or infinity in the kernels, the zeros around the gradient
// would spread them. Also false if such a value appears in the results.
template <typename T>
bool backward_images(const Geometry& g, const Tensor& grad_output, const Tensor& input,
                     const Tensor& weight, const Tensor& similarity, Wanted wanted, Tensor& gx,
                     Tensor& gw, Tensor& gm) {
  const SimilarityView<T> view(g, similarity);
  if (!finite_kernels(weight, view)) {
    return false;
  }
  if (wanted.weight || wanted.similarity) {
    kernel_gradients(g, grad_output, input, weight, view, wanted, gw, gm);
    constexpr T most = std::numeric_limits<T>::max();
    if (!all_within(gw.const_data_ptr<T>(), gw.numel(), most) ||
        !all_within(gm.const_data_ptr<T>(), gm.numel(), most)) {
      return false;
    }
  }
  if (wanted.input && can_turn(g) && g.group_channels() >= Vec<T>::size()) {
    turned_gradient(g, grad_output, weight, view, gx);
  } else if (wanted.input) {
    Tensor none;
    backward_typed<T>(g, grad_output, input, weight, similarity, {true, false, false}, gx, none,
                      none);
  }
  return true;
}

}  // namespace
