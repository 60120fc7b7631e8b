// The last part of the predictor's backward pass: the gradients of W1 and of the input.
#pragma once

#include <vector>

#include "predictor_backward.h"

namespace {

// The pixels whose distance from a window's start has the same remainder modulo the stride: they
// see the same taps. With stride one there is one class.
template <typename T>
struct PixelClass {
  int64_t row, column;  // remainders
  std::vector<int64_t> taps;
  TileKernels<T> kernels;
};

template <typename T>
class FirstGradient {
 public:
  FirstGradient(const PredictorGeometry& g, const InputView<T>& x, const NormGradient<T>& norm,
                const Saved<T>& saved, const T* weight, const std::vector<Band>& bands, bool input)
      : g_(g), x_(x), norm_(norm), saved_(saved), input_(input),
        input_pitch_(g.columns.input + 2 * g.columns.pad),
        left_(std::min<int64_t>(g.columns.first_output(0), 0)),
        pitch_(std::max(g.columns.last_output(g.columns.input) + 1, g.columns.output) - left_),
        taps_(g, input_pitch_, /*by_row=*/true) {
    for (const Band& band : bands) {
      const Extent e = extent(band);
      window_rows_ = std::max(window_rows_, e.last - e.first);
      input_rows_ = std::max(input_rows_, e.bottom - e.top);
    }
    if (input) {
      make_classes(weight);
    }
  }

  static int64_t row_bytes(const PredictorGeometry& g) {
    return (2 * g.columns.input * g.channels + g.columns.output * g.hidden / g.rows.stride) *
        static_cast<int64_t>(sizeof(T));
  }
  int64_t scratch_size() const {
    return gradient_size() + round_up(input_rows_ * input_pitch_ * g_.channels, 64) +
        window_rows_ * (pitch_ + g_.columns.input) + input_rows_ * g_.columns.input;
  }
  int64_t sums_size() const {  // [tap][channel][hidden]
    return g_.taps() * g_.channels * round_up(g_.hidden, Vec<T>::size());
  }

  // The band is of input rows; gx is their gradient, or null.
  void run(Band band, const T* gh, T* scratch, T* gx, T* weight_sums) const {
    const Extent e = extent(band);
    T* gv = scratch;
    T* x = gv + gradient_size();
    T* q = x + round_up(input_rows_ * input_pitch_ * g_.channels, 64);
    x_.load(g_, band.image, e.top, e.bottom, x);
    fill_gradient(band.image, e, gh, gv, q);
    add_weight_gradient(e, x, gv, weight_sums);
    if (!input_) {
      return;
    }
    T* rows = q + window_rows_ * pitch_;
    T* pixels = rows + window_rows_ * g_.columns.input;
    spread_lengths(band, e, q, rows, pixels);
    gx += (band.image * g_.rows.input + band.begin) * g_.columns.input * g_.channels;
    start_input_gradient(band, e, x, pixels, gx);
    for (const PixelClass<T>& pixel_class : classes_) {
      add_input_gradient(band, e, pixel_class, gv, gx);
    }
  }

 private:
  // What a band needs: windows [first, last) may touch it, windows [begin, end) are its own, and
  // rows [top, bottom) of the input are under those, or the band's.
  struct Extent {
    int64_t first, last, begin, end, top, bottom;
  };

  Extent extent(Band band) const {
    const Axis& rows = g_.rows;
    Extent e{rows.first_output(band.begin), rows.last_output(band.end) + 1, 0, 0, 0, 0};
    // A window belongs to the band that it begins in; those that begin outside the image belong to
    // the first or last band.
    e.begin = band.begin == 0 ? 0 : ceil_div_any(band.begin + rows.pad, rows.stride);
    e.end = band.end == rows.input ? rows.output : ceil_div_any(band.end + rows.pad, rows.stride);
    // Windows that touch no band at all see only padding.
    e.begin = std::max({e.begin, e.first, int64_t(0)});
    e.end = std::max(std::min({e.end, e.last, rows.output}), e.begin);
    e.top = band.begin, e.bottom = band.end;
    if (e.begin < e.end) {
      e.top = std::min(e.top, rows.start(e.begin));
      e.bottom = std::max(e.bottom, rows.start(e.end - 1) + rows.reach() + 1);
    }
    return e;
  }

  int64_t gradient_size() const {
    return round_up(window_rows_ * pitch_ * g_.hidden + kColumns<T>, 64);
  }

  void make_classes(const T* weight) {
    const Axis &rows = g_.rows, &columns = g_.columns;
    for (int64_t i = 0; i < rows.stride * columns.stride; ++i) {
      const int64_t row = i / columns.stride, column = i % columns.stride;
      std::vector<int64_t> taps, offsets;
      for (int64_t tap = g_.taps() - 1; tap >= 0; --tap) {  // later taps see earlier windows
        const int64_t down = tap / columns.kernel * rows.step - row;
        const int64_t right = tap % columns.kernel * columns.step - column;
        if (down % rows.stride == 0 && right % columns.stride == 0) {
          taps.push_back(tap);
          offsets.push_back(
              -(down / rows.stride * pitch_ + right / columns.stride) * g_.hidden);
        }
      }
      if (!taps.empty()) {
        classes_.push_back({row, column, offsets,
                            TileKernels<T>(g_.channels, static_cast<int64_t>(taps.size()),
                                           g_.hidden, [&](int64_t c, int64_t tap, int64_t h) {
                                             return weight[(h * g_.channels + c) * g_.taps() +
                                                           taps[tap]];
                                           })});
      }
    }
  }

  // The gradient of the convolution, gu / |patch|, and q, with zeros around them.
  void fill_gradient(int64_t image, const Extent& e, const T* gh, T* gv, T* q) const {
    const int64_t columns = g_.columns.output, h = g_.hidden;
    for (int64_t p = e.first; p < e.last; ++p, gv += pitch_ * h, q += pitch_) {
      std::fill_n(q, pitch_, T(0));
      if (p < 0 || p >= g_.rows.output) {
        std::fill_n(gv, pitch_ * h, T(0));
        continue;
      }
      std::fill_n(gv, -left_ * h, T(0));
      std::fill_n(gv + (columns - left_) * h, (pitch_ + left_ - columns) * h, T(0));
      const int64_t place = (image * g_.rows.output + p) * columns;
      fill_row(gh + place * h, saved_.u + place * h, saved_.inverse + place, gv - left_ * h,
               q - left_);
    }
  }

  void fill_row(const T* gh, const T* u, const T* inverse, T* gv, T* q) const {
    const int64_t h = g_.hidden, columns = g_.columns.output;
    for_vectors<T>(columns * h, norm_.period(), [&](int64_t i, int64_t j, int count) {
      norm_(Vec<T>::loadu(gh + i, count), Vec<T>::loadu(u + i, count), j).store(gv + i, count);
    });
    for (int64_t i = 0; i < columns; ++i) {
      // gu . u, with gu / |patch| in the place of gu
      const T dot = reverse_tap(gv + i * h, T(0), u + i * h, static_cast<T*>(nullptr), false, h);
      q[i] = -dot * inverse[i] * inverse[i];
      scaled(gv + i * h, inverse[i], gv + i * h, h);
    }
  }

  void add_weight_gradient(const Extent& e, const T* x, const T* gv, T* sums) const {
    const int64_t h = g_.hidden, columns = g_.columns.output;
    const int64_t some = std::max<int64_t>(192 / std::max<int64_t>(columns, 1), 1);
    for (int64_t p = e.begin; p < e.end; p += some) {
      const T* under = x + (g_.rows.start(p) - e.top) * input_pitch_ * g_.channels;
      const T* own = gv + ((p - e.first) * pitch_ - left_) * h;
      for (int64_t tap = 0; tap < taps_.count; ++tap) {
        correlate<T>({under + taps_.offsets[tap], g_.rows.stride * input_pitch_ * g_.channels,
                      g_.columns.stride * g_.channels},
                     taps_.channels, {own, pitch_ * h, h}, h, std::min(some, e.end - p), columns,
                     sums + tap * taps_.channels * round_up(h, Vec<T>::size()));
      }
    }
  }

  // The sum of q over the windows that each pixel is in: along rows, then along columns.
  void spread_lengths(Band band, const Extent& e, const T* q, T* rows, T* pixels) const {
    const Axis& axis = g_.columns;
    std::fill_n(rows, (e.last - e.first) * axis.input, T(0));
    std::fill_n(pixels, (band.end - band.begin) * axis.input, T(0));
    for (int64_t p = std::max<int64_t>(e.first, 0); p < std::min(e.last, g_.rows.output); ++p) {
      const T* from = q + (p - e.first) * pitch_ - left_;
      T* row = rows + (p - e.first) * axis.input;
      for (int64_t j = 0; j < axis.kernel; ++j) {
        const int64_t shift = j * axis.step - axis.pad;
        const int64_t begin = std::max<int64_t>(ceil_div_any(-shift, axis.stride), 0);
        const int64_t end =
            std::min(floor_div(axis.input - 1 - shift, axis.stride) + 1, axis.output);
        for (int64_t i = begin; i < end; ++i) {
          row[i * axis.stride + shift] += from[i];
        }
      }
      for (int64_t i = 0; i < g_.rows.kernel; ++i) {
        const int64_t y = g_.rows.start(p) + i * g_.rows.step;
        if (y >= band.begin && y < band.end) {
          add(pixels + (y - band.begin) * axis.input, row, axis.input);
        }
      }
    }
  }

  void start_input_gradient(Band band, const Extent& e, const T* x, const T* pixels,
                            T* gx) const {
    for (int64_t y = band.begin; y < band.end; ++y) {
      const T* from = x + ((y - e.top) * input_pitch_ + g_.columns.pad) * g_.channels;
      for (int64_t i = 0; i < g_.columns.input; ++i, from += g_.channels, gx += g_.channels) {
        scaled(gx, *pixels++, from, g_.channels);
      }
    }
  }

  void add_input_gradient(Band band, const Extent& e, const PixelClass<T>& c, const T* gv,
                          T* gx) const {
    const Axis &rows = g_.rows, &columns = g_.columns;
    const auto first = [](int64_t begin, int64_t remainder, const Axis& axis) {
      return begin + (remainder - (begin + axis.pad) % axis.stride + axis.stride) % axis.stride;
    };
    std::vector<int64_t> from, at;
    for (int64_t y = first(band.begin, c.row, rows); y < band.end; y += rows.stride) {
      for (int64_t x = first(0, c.column, columns); x < columns.input; x += columns.stride) {
        const int64_t p = (y + rows.pad) / rows.stride, q = (x + columns.pad) / columns.stride;
        from.push_back(((p - e.first) * pitch_ + q - left_) * g_.hidden);
        at.push_back(((y - band.begin) * columns.input + x) * g_.channels);
      }
    }
    convolve<T>({gv, from.data(), c.taps.data(), g_.hidden}, static_cast<int64_t>(at.size()),
                c.kernels, {gx, at.data()}, true);
  }

  const PredictorGeometry& g_;
  const InputView<T>& x_;
  const NormGradient<T>& norm_;
  const Saved<T>& saved_;
  bool input_;
  int64_t input_pitch_, left_, pitch_;  // left: the first column that a pixel sees, at most 0
  FirstTaps taps_;
  int64_t window_rows_ = 0, input_rows_ = 0;
  std::vector<PixelClass<T>> classes_;
};

template <typename T>
void run_first_gradient(const PredictorGeometry& g, const Tensor& input,
                        const NormGradient<T>& norm, const Saved<T>& saved, const T* weight,
                        const T* gh, T* gx, Tensor& weight_gradient) {
  const auto bands = bands_of(g.batch, g.rows.input, FirstGradient<T>::row_bytes(g));
  const int64_t slots = slots_for(bands.size());
  const InputView<T> x(input);
  const FirstGradient<T> layer(g, x, norm, saved, weight, bands, gx != nullptr);
  Scratch<T> scratch(input, slots, layer.scratch_size());
  const Tensor parts = at::zeros({slots, layer.sums_size()}, input.options());
  for_slots(slots, static_cast<int64_t>(bands.size()), [&](int64_t slot, Range range) {
    T* mine = parts.mutable_data_ptr<T>() + slot * parts.size(1);
    for (int64_t i = range.begin; i < range.end; ++i) {
      layer.run(bands[i], gh, scratch.slot(slot), gx, mine);
    }
  });
  // [slot][tap][channel][hidden, padded] to (hidden, channels, kernel)
  const Tensor sum = parts.sum(0).view({g.taps(), g.channels, -1}).narrow(2, 0, g.hidden);
  weight_gradient.copy_(sum.permute({2, 1, 0}).reshape(weight_gradient.sizes()));
}

}  // namespace
