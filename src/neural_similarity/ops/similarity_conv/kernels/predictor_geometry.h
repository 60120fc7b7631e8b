// Sizes of a predictor's two layers, and bands of rows that fit the caches.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "geometry.h"

namespace {

int64_t floor_div(int64_t a, int64_t b) {
  return a >= 0 ? a / b : -ceil_div(-a, b);
}

int64_t ceil_div_any(int64_t a, int64_t b) {  // also for negative numbers
  return -floor_div(-a, b);
}

// One axis of the first layer: output p, tap i and input y meet where y = p stride - pad + i step.
struct Axis {
  int64_t input, output, kernel, stride, pad, step;

  int64_t start(int64_t p) const { return p * stride - pad; }
  int64_t reach() const { return (kernel - 1) * step; }
  // The outputs, including those outside the map, whose windows may touch inputs [begin, end).
  int64_t first_output(int64_t begin) const { return ceil_div_any(begin + pad - reach(), stride); }
  int64_t last_output(int64_t end) const { return floor_div(end - 1 + pad, stride); }
};

struct PredictorGeometry {
  int64_t batch, channels, hidden, outputs;
  Axis rows, columns;
  int64_t last_h, last_w;  // the kernel of the second layer, odd: it keeps the size

  int64_t places() const { return rows.output * columns.output; }
  int64_t positions() const { return batch * places(); }
  int64_t taps() const { return rows.kernel * columns.kernel; }
  int64_t last_taps() const { return last_h * last_w; }
};

PredictorGeometry predictor_geometry(const Tensor& input, const Tensor& first, const Tensor& last,
                                     IntArrayRef stride, IntArrayRef padding,
                                     IntArrayRef dilation) {
  TORCH_CHECK(input.dim() == 4 && first.dim() == 4 && last.dim() == 4,
              "input and weights must have 4 axes");
  TORCH_CHECK(first.size(1) == input.size(1) && last.size(1) == first.size(0) &&
                  last.size(2) % 2 == 1 && last.size(3) % 2 == 1,
              "weights do not fit");
  const auto axis = [&](int i) {
    return Axis{input.size(2 + i),
                output_size(input.size(2 + i), first.size(2 + i), stride[i], padding[i],
                            dilation[i]),
                first.size(2 + i), stride[i], padding[i], dilation[i]};
  };
  return {input.size(0), input.size(1), first.size(0), last.size(0),
          axis(0),       axis(1),       last.size(2),  last.size(3)};
}

// Some rows of an image.
struct Band {
  int64_t image, begin, end;
};

// All rows of a batch in bands of nearly equal height, whose rows have about this many bytes each.
std::vector<Band> bands_of(int64_t batch, int64_t rows, int64_t row_bytes) {
  constexpr int64_t kBandBytes = 160 * 1024;
  const int64_t most = std::max<int64_t>(kBandBytes / std::max<int64_t>(row_bytes, 1), 4);
  const int64_t cuts = std::max<int64_t>(ceil_div(rows, most), 1);
  std::vector<Band> bands;
  for (int64_t n = 0; n < batch; ++n) {
    for (int64_t cut = 0; cut < cuts; ++cut) {
      bands.push_back({n, rows * cut / cuts, rows * (cut + 1) / cuts});
    }
  }
  return bands;
}

int64_t tallest(const std::vector<Band>& bands) {
  int64_t rows = 0;
  for (const Band& band : bands) {
    rows = std::max(rows, band.end - band.begin);
  }
  return rows;
}

// An input of any strides, read a band of rows at a time.
template <typename T>
struct InputView {
  const T* data;
  int64_t image, channel, row, column;  // strides

  explicit InputView(const Tensor& input)
      : data(input.const_data_ptr<T>()), image(input.stride(0)), channel(input.stride(1)),
        row(input.stride(2)), column(input.stride(3)) {}

  // Rows [top, bottom) of image n, channels adjacent, with zeros where there is no input.
  void load(const PredictorGeometry& g, int64_t n, int64_t top, int64_t bottom, T* to) const {
    const int64_t side = g.columns.pad * g.channels, inner = g.columns.input * g.channels;
    for (int64_t y = top; y < bottom; ++y, to += inner + 2 * side) {
      if (y < 0 || y >= g.rows.input) {
        std::fill_n(to, inner + 2 * side, T(0));
        continue;
      }
      std::fill_n(to, side, T(0));
      load_row(g, data + n * image + y * row, to + side);
      std::fill_n(to + side + inner, side, T(0));
    }
  }

 private:
  void load_row(const PredictorGeometry& g, const T* from, T* to) const {
    if (channel == 1 && column == g.channels) {
      std::copy_n(from, g.columns.input * g.channels, to);
      return;
    }
    for (int64_t c = 0; c < g.channels; ++c) {
      for (int64_t x = 0; x < g.columns.input; ++x) {
        to[x * g.channels + c] = from[c * channel + x * column];
      }
    }
  }
};

}  // namespace
