// The forward pass with one similarity per image.
//
// An image with a similarity of its own has kernels of its own, V = M^T W. They are computed once
// per image; what remains is a plain convolution. No panel: patches are read where they lie.
#pragma once

#include <ATen/Parallel.h>

#include <vector>

#include "forward.h"

namespace {

// The kernels of an image, for one tile of outputs: [tap][channel][output in tile], as the weights.
//   V[j, c, o] = sum_i M[i, j] W[i, c, o], or m[j, lane of c] W[j, c, o]
template <typename T>
void image_kernels(const Geometry& g, const T* weight, int64_t group, const T* factors, T* to) {
  const int64_t taps = g.taps(), row = g.group_channels() * kColumns<T>;
  if (g.full) {
    for (int64_t i = 0; i < row; i += kColumns<T>) {
      product({factors, 1, taps}, taps, weight + i, row, taps, to + i, row, kColumns<T>, false);
    }
    return;
  }
  const int64_t lanes = g.panel_lanes(), width = row / lanes;
  factors += g.first_lane(group);
  for (int64_t j = 0; j < taps; ++j, factors += g.lanes) {
    for (int64_t lane = 0; lane < lanes; ++lane, to += width, weight += width) {
      scaled(to, factors[lane], weight, width);
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

// Convolves images, each with its own kernels. They are taken in pieces whose padded copies fit the
// second-level cache: some images, or some rows of one. For a tile of outputs at a time, the
// kernels of every image are computed and used, so that they never leave that cache either.
template <typename T>
class ImageWorker {
 public:
  ImageWorker(const Geometry& g, const Blocking<T>& blocking, const PackedWeight<T>& weight,
              T* memory)
      : g_(g), weight_(weight), block_(blocking.taps), width_(g.width + 2 * g.pad_w),
        rows_(band_rows(g)), images_(images_at_once(g)), kernels_(memory),
        bands_(memory + kernels_size(g)) {
    for (int64_t k = 0; k < g.taps(); ++k) {
      taps_.push_back((k / g.kernel_w * g.dilation_h * width_ + k % g.kernel_w * g.dilation_w) *
                      g.channels);
    }
    for (int64_t i = 0; i < rows_ * g.out_w; ++i) {
      places_.push_back(
          (i / g.out_w * g.stride_h * width_ + i % g.out_w * g.stride_w) * g.channels);
    }
  }

  static int64_t size(const Geometry& g) {
    return kernels_size(g) + images_at_once(g) * band_size(g, band_rows(g));
  }

  void run(Range images, const T* x, const SimilarityView<T>& view, T* y) {
    for (int64_t n = images.begin; n < images.end; n += images_) {
      const Range some{n, std::min(n + images_, images.end)};
      for (int64_t top = 0; top < g_.out_h; top += rows_) {
        run_piece(some, {top, std::min(top + rows_, g_.out_h)}, x, view, y);
      }
    }
  }

 private:
  static constexpr int64_t kPieceBytes = 160 * 1024;

  static int64_t kernels_size(const Geometry& g) {
    return round_up(g.taps() * g.group_channels() * kColumns<T>, 64);
  }
  static int64_t input_rows(const Geometry& g, int64_t output_rows) {
    return (output_rows - 1) * g.stride_h + (g.kernel_h - 1) * g.dilation_h + 1;
  }
  static int64_t band_size(const Geometry& g, int64_t output_rows) {
    return input_rows(g, output_rows) * (g.width + 2 * g.pad_w) * g.channels;
  }
  static int64_t band_rows(const Geometry& g) {
    int64_t rows = g.out_h;
    while (rows > 1 && band_size(g, rows) * static_cast<int64_t>(sizeof(T)) > kPieceBytes) {
      rows = ceil_div(rows, 2);
    }
    return rows;
  }
  static int64_t images_at_once(const Geometry& g) {
    const int64_t bytes = band_size(g, band_rows(g)) * static_cast<int64_t>(sizeof(T));
    return band_rows(g) < g.out_h ? 1 : std::max<int64_t>(kPieceBytes / bytes, 1);
  }

  void run_piece(Range images, Range rows, const T* x, const SimilarityView<T>& view, T* y) {
    const int64_t band = band_size(g_, rows.end - rows.begin);
    for (int64_t n = images.begin; n < images.end; ++n) {
      pad(x + n * g_.channels * g_.height * g_.width, rows, bands_ + (n - images.begin) * band);
    }
    const int64_t tiles = ceil_div(g_.group_outputs(), kColumns<T>);
    for (int64_t i = 0; i < g_.groups * tiles; ++i) {
      const int64_t group = i / tiles, o = i % tiles * kColumns<T>;
      for (int64_t n = images.begin; n < images.end; ++n) {
        image_kernels(g_, weight_.outputs(group, i % tiles, 0), group, view.image(g_, n), kernels_);
        run_band(bands_ + (n - images.begin) * band + group * g_.group_channels(),
                 (rows.end - rows.begin) * g_.out_w,
                 y + (n * g_.places() + rows.begin * g_.out_w) * g_.outputs +
                     group * g_.group_outputs() + o,
                 std::min(kColumns<T>, g_.group_outputs() - o));
      }
    }
  }

  // The positions of a band, cut into tiles of nearly equal length.
  void run_band(const T* x, int64_t count, T* y, int64_t columns) {
    const int64_t cuts = ceil_div(count, kRows);
    for (int64_t cut = 0; cut < cuts; ++cut) {
      const int64_t begin = count * cut / cuts, end = count * (cut + 1) / cuts;
      for (int64_t first = 0; first < g_.taps(); first += block_) {
        const int64_t last = std::min(first + block_, g_.taps());
        const Patches<T> patches{x, &places_[begin], &taps_[0] + first, &taps_[0] + last,
                                 g_.group_channels()};
        direct_rows<T>(end - begin, patches, kernels_ + first * g_.group_channels() * kColumns<T>,
                       y + begin * g_.outputs, g_.outputs, columns, first > 0);
      }
    }
  }

  // The input rows that some output rows need, with zeros around them.
  void pad(const T* x, Range rows, T* to) {
    const int64_t side = g_.pad_w * g_.channels, inner = g_.width * g_.channels;
    const int64_t top = rows.begin * g_.stride_h - g_.pad_h;
    const int64_t bottom = top + input_rows(g_, rows.end - rows.begin);
    for (int64_t row = top; row < bottom; ++row, to += inner + 2 * side) {
      if (row < 0 || row >= g_.height) {
        std::fill_n(to, inner + 2 * side, T(0));
        continue;
      }
      std::fill_n(to, side, T(0));
      std::copy_n(x + row * inner, inner, to + side);
      std::fill_n(to + side + inner, side, T(0));
    }
  }

  const Geometry& g_;
  const PackedWeight<T>& weight_;
  int64_t block_;  // taps that are summed before they are added to other sums
  int64_t width_, rows_, images_;
  T* kernels_;
  T* bands_;
  std::vector<int64_t> taps_, places_;  // offsets of taps in a patch, of patches in a band
};

// Whether kernels of their own pay for every image: with few positions they would cost more than
// they save, with few images some threads would have nothing to do.
bool worth_own_kernels(const Geometry& g) {
  return g.per_image() && !g.depthwise() && g.places() >= 36 && g.batch >= at::get_num_threads();
}

template <typename T>
void forward_images(const Geometry& g, const Tensor& input, const Tensor& weight,
                    const Tensor& similarity, Tensor& output) {
  const Blocking<T> blocking(g);
  const PackedWeight<T> packed(g, blocking, weight, /*transposed=*/false);
  const SimilarityView<T> view(g, similarity);
  const int64_t slots = std::min<int64_t>(at::get_num_threads(), g.batch);
  Scratch<T> scratch(input, slots, ImageWorker<T>::size(g));
  const T* x = input.const_data_ptr<T>();
  T* y = output.mutable_data_ptr<T>();
  at::parallel_for(0, slots, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      ImageWorker<T> worker(g, blocking, packed, scratch.slot(slot));
      worker.run(share(g.batch, slots, slot, 1), x, view, y);
    }
  });
}

}  // namespace
