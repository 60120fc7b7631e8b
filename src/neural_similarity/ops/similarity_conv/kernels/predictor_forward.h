// The predictor's forward pass, with batch statistics in BatchNorm:
//   u = (W1 * x) / |patch|,   h = relu(norm1(u)),   z = W2 * h,   output = norm2(z)
//
// Three passes over the batch: u and its statistics, z and its statistics, the output. A pass
// copies a band of rows into a padded buffer that stays in the cache, and convolves it there.
#pragma once

#include <ATen/Parallel.h>

#include <vector>

#include "forward.h"
#include "predictor_channels.h"
#include "predictor_geometry.h"
#include "predictor_tiles.h"

namespace {

constexpr double kLengthEps = 1e-4;  // EPS of sphere.py

// f(slot, range of bands) on all threads.
template <typename F>
void for_slots(int64_t slots, int64_t bands, const F& f) {
  at::parallel_for(0, slots, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      f(slot, share(bands, slots, slot, 1));
    }
  });
}

int64_t slots_for(size_t bands) {
  return std::max<int64_t>(
      std::min<int64_t>(at::get_num_threads(), static_cast<int64_t>(bands)), 1);
}

// The taps of the first layer in a padded band: one by one, or a row of the kernel at a time where
// the taps of a row are adjacent.
struct FirstTaps {
  int64_t channels, count;  // adjacent under a tap; number of taps
  std::vector<int64_t> offsets;

  FirstTaps(const PredictorGeometry& g, int64_t pitch, bool by_row) {
    const bool merge = by_row && g.columns.step == 1;
    const int64_t across = merge ? 1 : g.columns.kernel;
    channels = merge ? g.channels * g.columns.kernel : g.channels;
    count = g.rows.kernel * across;
    for (int64_t tap = 0; tap < count; ++tap) {
      offsets.push_back((tap / across * g.rows.step * pitch + tap % across * g.columns.step) *
                        g.channels);
    }
  }
};

// The kernels of a contiguous weight (outputs, channels, taps).
template <typename T>
TileKernels<T> kernels_of(const T* weight, int64_t outputs, int64_t taps, int64_t channels) {
  return TileKernels<T>(outputs, taps, channels, [=](int64_t o, int64_t tap, int64_t c) {
    return weight[(o * channels + c) * taps + tap];
  });
}

// The first layer without BatchNorm, for bands of at most `rows` rows.
template <typename T>
class FirstLayer {
 public:
  // Kernels are in the order of TileKernels. Rows of outputs lie `places` positions apart.
  FirstLayer(const PredictorGeometry& g, const InputView<T>& x, const T* kernels, int64_t rows,
             int64_t places)
      : g_(g), x_(x), pitch_(g.columns.input + 2 * g.columns.pad),
        taps_(g, pitch_, /*by_row=*/false),
        kernels_(g.hidden, taps_.count, taps_.channels, kernels), rows_(rows) {
    for (int64_t i = 0; i < rows * g.columns.output; ++i) {
      const int64_t p = i / g.columns.output, q = i % g.columns.output;
      from_.push_back((p * g.rows.stride * pitch_ + q * g.columns.stride) * g.channels);
      at_.push_back((p * places + q) * g.hidden);
    }
  }

  static int64_t row_bytes(const PredictorGeometry& g) {
    return (g.rows.stride * g.columns.input * g.channels + g.columns.output * g.hidden) *
        static_cast<int64_t>(sizeof(T));
  }
  int64_t scratch_size() const {
    return input_rows(rows_) * pitch_ * (g_.channels + 1) + rows_ * pitch_ + kColumns<T>;
  }

  // The products of a band with the kernels and, if requested, the inverse lengths of its patches.
  void run(Band band, T* scratch, T* products, T* inverse) const {
    const int64_t rows = band.end - band.begin, top = g_.rows.start(band.begin);
    x_.load(g_, band.image, top, top + input_rows(rows), scratch);
    if (inverse) {
      lengths(scratch, rows, scratch + input_rows(rows_) * pitch_ * g_.channels, inverse);
    }
    convolve<T>({scratch, from_.data(), taps_.offsets.data(), taps_.channels},
                rows * g_.columns.output, kernels_, {products, at_.data()}, false);
  }

 private:
  int64_t input_rows(int64_t rows) const {
    return (rows - 1) * g_.rows.stride + g_.rows.reach() + 1;
  }

  // One over the lengths: squares summed over channels, then columns, then rows of the kernel.
  void lengths(const T* x, int64_t rows, T* squares, T* inverse) const {
    for (int64_t i = 0; i < input_rows(rows) * pitch_; ++i) {
      squares[i] = square(x + i * g_.channels);
    }
    T* sums = squares + input_rows(rows_) * pitch_;
    for (int64_t p = 0; p < rows; ++p, inverse += g_.columns.output) {
      const T* from = squares + p * g_.rows.stride * pitch_;
      std::copy_n(from, pitch_, sums);
      for (int64_t i = 1; i < g_.rows.kernel; ++i) {
        add(sums, from + i * g_.rows.step * pitch_, pitch_);
      }
      for (int64_t q = inverse_vectors(sums, inverse); q < g_.columns.output; ++q) {
        T sum = T(kLengthEps);
        for (int64_t j = 0; j < g_.columns.kernel; ++j) {
          sum += sums[q * g_.columns.stride + j * g_.columns.step];
        }
        inverse[q] = 1 / std::sqrt(sum);
      }
    }
  }

  // The same for vectors of columns, where windows are neighbours; returns where they end.
  int64_t inverse_vectors(const T* sums, T* inverse) const {
    constexpr int64_t width = Vec<T>::size();
    int64_t q = 0;
    for (; g_.columns.stride == 1 && q + width <= g_.columns.output; q += width) {
      Vec<T> sum{T(kLengthEps)};
      for (int64_t j = 0; j < g_.columns.kernel; ++j) {
        sum = sum + Vec<T>::loadu(sums + q + j * g_.columns.step);
      }
      (Vec<T>(T(1)) / sum.sqrt()).store(inverse + q);
    }
    return q;
  }

  T square(const T* x) const {
    constexpr int width = Vec<T>::size();
    Vec<T> lanes(T(0));
    int64_t c = 0;
    for (; c + width <= g_.channels; c += width) {
      const Vec<T> value = Vec<T>::loadu(x + c);
      lanes = at::vec::fmadd(value, value, lanes);
    }
    T sum = c > 0 ? sum_of(lanes) : T(0);
    for (; c < g_.channels; ++c) {
      sum += x[c] * x[c];
    }
    return sum;
  }

  const PredictorGeometry& g_;
  const InputView<T>& x_;
  int64_t pitch_;
  FirstTaps taps_;
  TileKernels<T> kernels_;
  int64_t rows_;
  std::vector<int64_t> from_, at_;
};

// Rows of a map with zeros around it, as the second layer and its gradient read them.
struct Margins {
  int64_t top, side, pitch;

  Margins(const PredictorGeometry& g)
      : top(g.last_h / 2), side(g.last_w / 2), pitch(g.columns.output + 2 * side) {}

  int64_t size(int64_t rows, int64_t channels) const { return (rows + 2 * top) * pitch * channels; }

  // Fill a band and its margins; fill_row(place of the row in the batch, where to write it).
  template <typename T, typename F>
  void fill(const PredictorGeometry& g, Band band, int64_t channels, T* to,
            const F& fill_row) const {
    for (int64_t p = band.begin - top; p < band.end + top; ++p, to += pitch * channels) {
      if (p < 0 || p >= g.rows.output) {
        std::fill_n(to, pitch * channels, T(0));
        continue;
      }
      std::fill_n(to, side * channels, T(0));
      fill_row((band.image * g.rows.output + p) * g.columns.output, to + side * channels);
      std::fill_n(to + (pitch - side) * channels, side * channels, T(0));
    }
  }

  std::vector<int64_t> windows(const PredictorGeometry& g, int64_t rows, int64_t channels) const {
    std::vector<int64_t> from;
    for (int64_t i = 0; i < rows * g.columns.output; ++i) {
      from.push_back((i / g.columns.output * pitch + i % g.columns.output) * channels);
    }
    return from;
  }
  std::vector<int64_t> taps(const PredictorGeometry& g, int64_t channels) const {
    std::vector<int64_t> offsets;
    for (int64_t tap = 0; tap < g.last_taps(); ++tap) {
      offsets.push_back((tap / g.last_w * pitch + tap % g.last_w) * channels);
    }
    return offsets;
  }
};

// h = relu(norm1(u)) for a row of positions.
template <typename T>
void hidden_row(const Affine<T>& norm, const T* u, T* to, int64_t size) {
  for_vectors<T>(size, norm.scale.period(), [&](int64_t i, int64_t j, int count) {
    at::vec::maximum(norm(Vec<T>::loadu(u + i, count), j), Vec<T>(T(0))).store(to + i, count);
  });
}

std::vector<int64_t> consecutive(int64_t count, int64_t step) {
  std::vector<int64_t> places;
  for (int64_t i = 0; i < count; ++i) {
    places.push_back(i * step);
  }
  return places;
}

template <typename T>
Statistics run_first(const PredictorGeometry& g, const Tensor& input, const T* weight, T* u,
                     T* inverse) {
  const auto bands = bands_of(g.batch, g.rows.output, FirstLayer<T>::row_bytes(g));
  const int64_t slots = slots_for(bands.size());
  const InputView<T> x(input);
  const TileKernels<T> kernels = kernels_of(weight, g.hidden, g.taps(), g.channels);
  const FirstLayer<T> layer(g, x, kernels.tile(0), tallest(bands), g.columns.output);
  Scratch<T> scratch(input, slots, layer.scratch_size());
  std::vector<ChannelSums<T>> sums(slots, ChannelSums<T>(g.hidden));
  for_slots(slots, static_cast<int64_t>(bands.size()), [&](int64_t slot, Range range) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      const Band& band = bands[i];
      const int64_t count = (band.end - band.begin) * g.columns.output;
      const int64_t first = band.image * g.places() + band.begin * g.columns.output;
      T* to = u + first * g.hidden;
      layer.run(band, scratch.slot(slot), to, inverse + first);
      for (int64_t j = 0; j < count; ++j) {
        scaled(to + j * g.hidden, inverse[first + j], to + j * g.hidden, g.hidden);
      }
      sums[slot].add(to, count);
    }
  });
  return statistics_of(sums, g.hidden);
}

template <typename T>
Statistics run_last(const PredictorGeometry& g, const Tensor& like, const Affine<T>& norm,
                    const T* weight, const T* u, T* z) {
  const auto bands = bands_of(g.batch, g.rows.output,
                              g.columns.output * g.hidden * static_cast<int64_t>(sizeof(T)));
  const int64_t slots = slots_for(bands.size()), rows = tallest(bands);
  const Margins margins(g);
  const TileKernels<T> kernels = kernels_of(weight, g.outputs, g.last_taps(), g.hidden);
  const auto from = margins.windows(g, rows, g.hidden), taps = margins.taps(g, g.hidden);
  const auto at = consecutive(rows * g.columns.output, g.outputs);
  Scratch<T> scratch(like, slots, margins.size(rows, g.hidden));
  std::vector<ChannelSums<T>> sums(slots, ChannelSums<T>(g.outputs));
  for_slots(slots, static_cast<int64_t>(bands.size()), [&](int64_t slot, Range range) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      const Band& band = bands[i];
      T* hidden = scratch.slot(slot);
      margins.fill(g, band, g.hidden, hidden, [&](int64_t place, T* to) {
        hidden_row(norm, u + place * g.hidden, to, g.columns.output * g.hidden);
      });
      const int64_t count = (band.end - band.begin) * g.columns.output;
      T* to = z + (band.image * g.places() + band.begin * g.columns.output) * g.outputs;
      convolve<T>({hidden, from.data(), taps.data(), g.hidden}, count, kernels, {to, at.data()},
                  false);
      sums[slot].add(to, count);
    }
  });
  return statistics_of(sums, g.outputs);
}

template <typename T>
void normalize(const Affine<T>& norm, const T* z, T* output, int64_t positions, int64_t channels) {
  at::parallel_for(0, positions, 4096, [&](int64_t begin, int64_t end) {
    const T* from = z + begin * channels;
    T* to = output + begin * channels;
    for_vectors<T>((end - begin) * channels, norm.scale.period(),
                   [&](int64_t i, int64_t j, int count) {
                     norm(Vec<T>::loadu(from + i, count), j).store(to + i, count);
                   });
  });
}

}  // namespace
