// Padded copies of images, from which patches are read in place.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "forward.h"

namespace {

// Whether no value is larger in magnitude than `most`, or NaN.
template <typename T>
bool all_within(const T* data, int64_t size, T most) {
  bool within = true;
  for (int64_t i = 0; i < size; ++i) {  // without a branch, so that the compiler vectorises it
    within &= std::abs(data[i]) <= most;
  }
  return within;
}

// Whether the products of all weights and factors are finite.
template <typename T>
bool finite_kernels(const Tensor& weight, const SimilarityView<T>& view) {
  const T most = std::sqrt(std::numeric_limits<T>::max()) / 2;
  return all_within(weight.const_data_ptr<T>(), weight.numel(), most) &&
      all_within(view.images.data(), static_cast<int64_t>(view.images.size()), most);
}

// A batch is processed in pieces whose padded copies fit the second-level cache: some images, or a
// band of rows of one image.
//
// At the upper and lower edge, whole rows of taps lie in the padding. They are skipped if zeros
// make no difference there: with `finite` factors.
template <typename T>
class Bands {
 public:
  Bands(const Geometry& g, T* memory, bool finite)
      : g_(g), width_(g.width + 2 * g.pad_w), rows_(band_rows(g)), images_(images_at_once(g)),
        memory_(memory) {
    for (int64_t k = 0; k < g.taps(); ++k) {
      taps_.push_back((k / g.kernel_w * g.dilation_h * width_ + k % g.kernel_w * g.dilation_w) *
                      g.channels);
    }
    for (int64_t i = 0; i < rows_ * g.out_w; ++i) {
      places_.push_back(
          (i / g.out_w * g.stride_h * width_ + i % g.out_w * g.stride_w) * g.channels);
      row_.push_back(i / g.out_w);
    }
    for (int64_t p = 0; p < g.out_h; ++p) {
      const int64_t top = p * g.stride_h - g.pad_h;
      Range rows{0, g.kernel_h};
      while (finite && rows.begin < rows.end && top + rows.begin * g.dilation_h < 0) {
        ++rows.begin;
      }
      while (finite && rows.begin < rows.end && top + (rows.end - 1) * g.dilation_h >= g.height) {
        --rows.end;
      }
      seen_.push_back({rows.begin * g.kernel_w, rows.end * g.kernel_w});
      sees_all_ = sees_all_ && rows.begin < rows.end;
    }
  }

  // Elements of all copies.
  static int64_t size(const Geometry& g) { return images_at_once(g) * band_size(g, band_rows(g)); }

  // Positions of the largest band.
  static int64_t most_places(const Geometry& g) { return band_rows(g) * g.out_w; }

  // Calls f(images, output rows) for every piece, when its copies are in place.
  template <typename F>
  void for_each(Range images, const T* x, const F& f) {
    for (int64_t n = images.begin; n < images.end; n += images_) {
      const Range some{n, std::min(n + images_, images.end)};
      for (int64_t top = 0; top < g_.out_h; top += rows_) {
        top_ = top;
        load(some, {top, std::min(top + rows_, g_.out_h)}, x);
        f(some, Range{top, std::min(top + rows_, g_.out_h)});
      }
    }
  }

  // The copy of an image of the piece.
  const T* of(int64_t n) const { return memory_ + (n - first_) * band_; }
  // The taps, of [first, last), that see the image from any of these positions of the piece.
  Range seen(int64_t begin, int64_t end, int64_t first, int64_t last) const {
    const int64_t from = std::max(first, seen_[top_ + row_[end - 1]].begin);
    const int64_t to = std::min(last, seen_[top_ + row_[begin]].end);
    return {from, std::max(from, to)};
  }
  // The positions, of [begin, end), from which any tap of [first, last) sees the image. All of them
  // if some see nothing: NaN in their gradients must meet a zero somewhere.
  Range facing(int64_t begin, int64_t end, int64_t first, int64_t last) const {
    while (sees_all_ && begin < end && !meet(seen_[top_ + row_[begin]], {first, last})) {
      begin += g_.out_w - begin % g_.out_w;
    }
    while (sees_all_ && begin < end && !meet(seen_[top_ + row_[end - 1]], {first, last})) {
      end -= (end - 1) % g_.out_w + 1;
    }
    return {begin, std::max(begin, end)};
  }
  // Offsets in a copy: of taps in a patch, of patches in the band.
  const int64_t* taps() const { return taps_.data(); }
  const int64_t* places() const { return places_.data(); }

 private:
  static bool meet(Range a, Range b) { return a.begin < b.end && b.begin < a.end; }

  static constexpr int64_t kPieceBytes = 160 * 1024;

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

  void load(Range images, Range rows, const T* x) {
    first_ = images.begin, band_ = band_size(g_, rows.end - rows.begin);
    for (int64_t n = images.begin; n < images.end; ++n) {
      pad(x + n * g_.channels * g_.height * g_.width, rows, memory_ + (n - first_) * band_);
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
  int64_t width_, rows_, images_;
  int64_t first_ = 0, top_ = 0;  // image and output row of the piece
  int64_t band_ = 0;             // elements of a copy
  T* memory_;
  std::vector<int64_t> taps_, places_, row_;
  std::vector<Range> seen_;  // taps, for every output row
  bool sees_all_ = true;     // no output row sees only padding
};

}  // namespace
