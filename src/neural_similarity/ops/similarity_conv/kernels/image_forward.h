// The forward pass with one similarity per image.
//
// An image with its own similarity has its own kernels, V = M^T W. They are computed for a tile of
// outputs and a block of taps at a time; what remains is a plain convolution. No panel: patches are
// read in place.
#pragma once

#include <ATen/Parallel.h>

#include "image_bands.h"

namespace {

// Some taps j of the kernels of an image, for one tile of outputs: [tap][channel][output in tile],
// as the weights.
//   V[j, c, o] = sum_i M[i, j] W[i, c, o], or m[j, lane of c] W[j, c, o]
template <typename T>
void image_kernels(const Geometry& g, const T* weight, int64_t group, const T* factors, Range some,
                   T* to) {
  const int64_t taps = g.taps(), row = g.group_channels() * kColumns<T>;
  if (g.full) {
    for (int64_t i = 0; i < row; i += kColumns<T>) {
      product({factors + some.begin, 1, taps}, some.end - some.begin, weight + i, row, taps, to + i,
              row, kColumns<T>, false);
    }
    return;
  }
  const int64_t lanes = g.panel_lanes(), width = row / lanes;
  weight += some.begin * row;
  factors += some.begin * g.lanes + g.first_lane(group);
  const std::integral_constant<int64_t, kColumns<T>> one_channel;
  for (int64_t j = some.begin; j < some.end; ++j, factors += g.lanes) {
    for (int64_t lane = 0; lane < lanes; ++lane, to += width, weight += width) {
      if (width == one_channel) {
        scaled(to, factors[lane], weight, one_channel);
      } else {
        scaled(to, factors[lane], weight, width);
      }
    }
  }
}

// Some taps of patches: the patch of row r begins at x + places[r], its taps at the offsets.
template <typename T>
struct Patches {
  const T* x;
  const int64_t* places;
  const int64_t* first_tap;
  const int64_t* last_tap;
  int64_t channels;
};

// y[R rows, V vectors] (+)= patches times kernels, all of it held in registers. As in `tile`, what
// was in y is added last.
template <typename T, int R, int V>
inline void direct_tile(const Patches<T>& from, const T* kernels, T* y, int64_t y_row, bool add) {
  constexpr int width = Vec<T>::size();
  Vec<T> sum[R][V];
  const T* patch[R];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    patch[r] = from.x + from.places[r];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      sum[r][v] = Vec<T>(T(0));
    }
  }
  for (const int64_t* tap = from.first_tap; tap < from.last_tap; ++tap) {
    for (int64_t c = *tap; c < *tap + from.channels; ++c, kernels += kColumns<T>) {
      Vec<T> right[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        right[v] = Vec<T>::loadu(kernels + v * width);
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const Vec<T> element(patch[r][c]);
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
          sum[r][v] = at::vec::fmadd(element, right[v], sum[r][v]);
        }
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      T* place = y + r * y_row + v * width;
      (add ? Vec<T>::loadu(place) + sum[r][v] : sum[r][v]).store(place);
    }
  }
}

// The same for `rows` of at most R rows and `columns` of at most kColumns outputs. Outputs cut
// short by the edge go through a buffer, so that nothing is read or written past it.
template <typename T, int R = kRows>
void direct_rows(int64_t rows, const Patches<T>& from, const T* kernels, T* y, int64_t y_row,
                 int64_t columns, bool add) {
  constexpr int width = Vec<T>::size();
  if constexpr (R > 1) {
    if (rows < R) {
      direct_rows<T, R - 1>(rows, from, kernels, y, y_row, columns, add);
      return;
    }
  }
  if (columns == 2 * width) {
    direct_tile<T, R, 2>(from, kernels, y, y_row, add);
    return;
  }
  if (columns == width) {
    direct_tile<T, R, 1>(from, kernels, y, y_row, add);
    return;
  }
  T edge[R * 2 * width];
  if (columns > width) {
    direct_tile<T, R, 2>(from, kernels, edge, 2 * width, false);
  } else {
    direct_tile<T, R, 1>(from, kernels, edge, 2 * width, false);
  }
  for (int r = 0; r < R; ++r) {
    for (int64_t j = 0; j < columns; ++j) {
      y[r * y_row + j] = edge[r * 2 * width + j] + (add ? y[r * y_row + j] : T(0));
    }
  }
}

// Computes the kernels of an image from the weights that all images share.
template <typename T>
struct ForwardKernels {
  const Geometry& g;
  const PackedWeight<T>& weight;
  const SimilarityView<T>& view;

  void operator()(int64_t n, int64_t group, int64_t tile, Range taps, T* to) const {
    image_kernels(g, weight.outputs(group, tile, 0), group, view.image(g, n), taps, to);
  }
};

// Convolves images, each with its own kernels. These are computed for a tile of outputs and a block
// of taps at a time, and used immediately, while they are in the first-level cache.
template <typename T>
class ImageWorker {
 public:
  ImageWorker(const Geometry& g, T* memory, bool finite)
      : g_(g), block_(block_of(g)), kernels_(memory), bands_(g, memory + kernels_size(g), finite) {}

  static int64_t size(const Geometry& g) { return kernels_size(g) + Bands<T>::size(g); }

  // `make_kernels(image, group, tile, taps, to)` writes [tap][channel][output in tile].
  template <typename F>
  void run(Range batch, const T* x, const F& make_kernels, T* y) {
    const int64_t tiles = ceil_div(g_.group_outputs(), kColumns<T>);
    bands_.for_each(batch, x, [&](Range images, Range rows) {
      for (int64_t i = 0; i < g_.groups * tiles; ++i) {
        const int64_t group = i / tiles, o = i % tiles * kColumns<T>;
        for (int64_t n = images.begin; n < images.end; ++n) {
          for (int64_t first = 0; first < g_.taps(); first += block_) {
            const Range taps{first, std::min(first + block_, g_.taps())};
            make_kernels(n, group, i % tiles, taps, kernels_);
            run_band(bands_.of(n) + group * g_.group_channels(), (rows.end - rows.begin) * g_.out_w,
                     taps,
                     y + (n * g_.places() + rows.begin * g_.out_w) * g_.outputs +
                         group * g_.group_outputs() + o,
                     std::min(kColumns<T>, g_.group_outputs() - o));
          }
        }
      }
    });
  }

 private:
  // Taps at a time: their kernels should leave room for patches in the first-level cache.
  static int64_t block_of(const Geometry& g) {
    constexpr int64_t kBytes = 20 * 1024;
    const int64_t tap = g.group_channels() * kColumns<T> * static_cast<int64_t>(sizeof(T));
    const int64_t fitting = std::max<int64_t>(kBytes / tap, 1);
    return ceil_div(g.taps(), ceil_div(g.taps(), fitting));
  }
  static int64_t kernels_size(const Geometry& g) {
    return round_up(block_of(g) * g.group_channels() * kColumns<T>, 64);
  }

  // How many tiles of nearly equal length cover the positions of a band. A tile that is one row of a
  // small image can skip all taps that see only padding, if this row fills most of it. Each position
  // takes a register for the address of its patch: with one vector of outputs, more than ten of them
  // do not pay off.
  int64_t cuts_of(int64_t count, int64_t columns) const {
    const int64_t most = columns > Vec<T>::size() ? kRows : std::min(kRows, 10);
    const bool by_rows = g_.out_w <= most && 3 * g_.out_w >= 2 * most;
    return by_rows ? count / g_.out_w : ceil_div(count, most);
  }

  // The positions of a band for a block of taps.
  void run_band(const T* x, int64_t count, Range taps, T* y, int64_t columns) {
    const int64_t cuts = cuts_of(count, columns);
    for (int64_t cut = 0; cut < cuts; ++cut) {
      const int64_t begin = count * cut / cuts, end = count * (cut + 1) / cuts;
      const Range seen = bands_.seen(begin, end, taps.begin, taps.end);
      if (seen.begin == seen.end && taps.begin > 0) {
        continue;  // the first block has written zeros, if no other sees the image
      }
      const Patches<T> patches{x, bands_.places() + begin, bands_.taps() + seen.begin,
                               bands_.taps() + seen.end, g_.group_channels()};
      direct_rows<T>(end - begin, patches,
                     kernels_ + (seen.begin - taps.begin) * g_.group_channels() * kColumns<T>,
                     y + begin * g_.outputs, g_.outputs, columns, taps.begin > 0);
    }
  }

  const Geometry& g_;
  int64_t block_;  // taps that are summed before they are added to other sums
  T* kernels_;
  Bands<T> bands_;
};

// Whether separate kernels for every image pay off: with few positions they would cost more than
// they save, and with few images some threads would have nothing to do.
bool worth_own_kernels(const Geometry& g) {
  return g.per_image() && !g.depthwise() && g.places() >= 36 && g.batch >= at::get_num_threads();
}

// Convolve a batch, each image with the kernels of `make_kernels`, which are `finite` or not.
template <typename T, typename F>
void convolve_images(const Geometry& g, const Tensor& input, const F& make_kernels, bool finite,
                     Tensor& output) {
  const int64_t slots = std::min<int64_t>(at::get_num_threads(), g.batch);
  Scratch<T> scratch(input, slots, ImageWorker<T>::size(g));
  const T* x = input.const_data_ptr<T>();
  T* y = output.mutable_data_ptr<T>();
  at::parallel_for(0, slots, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      ImageWorker<T> worker(g, scratch.slot(slot), finite);
      worker.run(share(g.batch, slots, slot, 1), x, make_kernels, y);
    }
  });
}

template <typename T>
void forward_images(const Geometry& g, const Tensor& input, const Tensor& weight,
                    const Tensor& similarity, Tensor& output) {
  const PackedWeight<T> packed(g, weight);
  const SimilarityView<T> view(g, similarity);
  convolve_images<T>(g, input, ForwardKernels<T>{g, packed, view}, finite_kernels(weight, view),
                     output);
}

}  // namespace
