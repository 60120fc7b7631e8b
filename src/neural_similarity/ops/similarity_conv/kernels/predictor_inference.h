// The predictor in evaluation mode, with BatchNorm folded into the weights:
//   h = relu((W1 * x) / |patch| + b1),   output = W2 * h + b2
//
// One pass over the batch, a band of rows at a time. Hidden rows that two bands share are kept for
// the second one; only where another thread continues are they computed twice.
#pragma once

#include <vector>

#include "predictor.h"

namespace {

// The kernels of a weight in the order of TileKernels, to be kept from call to call.
Tensor predictor_kernels(const Tensor& weight) {
  TORCH_CHECK(weight.dim() == 4, "a weight must have 4 axes");
  const Tensor from = weight.contiguous();
  const int64_t taps = weight.size(2) * weight.size(3);
  Tensor memory;
  for_type(weight.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const auto kernels =
        kernels_of(from.const_data_ptr<T>(), weight.size(0), taps, weight.size(1));
    memory = at::empty({kernels.size()}, weight.options());
    if (kernels.size() > 0) {
      std::copy_n(kernels.tile(0), kernels.size(), memory.mutable_data_ptr<T>());
    }
  });
  return memory;
}

// Rows of a map in bands: few enough to fit the second-level cache, enough for all threads.
std::vector<Band> inference_bands(const PredictorGeometry& g, int64_t row_bytes) {
  constexpr int64_t kBandBytes = 320 * 1024, kFewest = 4;
  const int64_t rows = g.rows.output, most = std::max(kBandBytes / row_bytes, kFewest);
  const int64_t bands_per_image =
      std::max(ceil_div(rows, most), at::get_num_threads() / g.batch);
  const int64_t most_bands = std::max<int64_t>(rows / kFewest, 1);
  const int64_t cuts = std::clamp<int64_t>(bands_per_image, 1, most_bands);
  std::vector<Band> bands;
  for (int64_t i = 0; i < g.batch * cuts; ++i) {
    const int64_t cut = i % cuts;
    bands.push_back({i / cuts, rows * cut / cuts, rows * (cut + 1) / cuts});
  }
  return bands;
}

template <typename T>
class PredictorInference {
 public:
  PredictorInference(const PredictorGeometry& g, const InputView<T>& x, const T* first,
                     const T* first_shift, const T* last, const T* last_shift, bool sphere,
                     int64_t rows)
      : g_(g), margins_(g), last_kernels_(g.outputs, g.last_taps(), g.hidden, last),
        first_shift_(first_shift), last_shift_(last_shift), sphere_(sphere), rows_(rows),
        layer_(g, x, first, hidden_rows(), margins_.pitch),
        from_(margins_.windows(g, rows, g.hidden)), taps_(margins_.taps(g, g.hidden)),
        at_(consecutive(rows * g.columns.output, g.outputs)) {}

  int64_t scratch_size() const {
    return layer_.scratch_size() + hidden_rows() * g_.columns.output +
           margins_.size(rows_, g_.hidden);
  }

  // One band; `before` is the band above it, if this was the last one that used the scratch memory.
  void run(Band band, const Band* before, T* scratch, T* output) const {
    T* inverse = scratch + layer_.scratch_size();
    T* hidden = inverse + hidden_rows() * g_.columns.output;
    int64_t ready = 0;
    if (before) {
      ready = 2 * margins_.top;
      const T* kept = hidden + (before->end - before->begin) * pitch();
      std::copy(kept, kept + ready * pitch(), hidden);
    }
    run_first(band, ready, scratch, inverse, hidden);
    const int64_t count = (band.end - band.begin) * g_.columns.output;
    output += (band.image * g_.places() + band.begin * g_.columns.output) * g_.outputs;
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(last_shift_, g_.outputs, output + i * g_.outputs);
    }
    convolve<T>({hidden, from_.data(), taps_.data(), g_.hidden}, count, last_kernels_,
                {output, at_.data()}, true);
  }

 private:
  int64_t hidden_rows() const { return std::min(rows_ + 2 * margins_.top, g_.rows.output); }
  int64_t pitch() const { return margins_.pitch * g_.hidden; }

  // The hidden rows that the windows of a band cover, with zeros around the map. The first `ready`
  // rows of `hidden` are there already.
  void run_first(Band band, int64_t ready, T* scratch, T* inverse, T* hidden) const {
    const int64_t first = band.begin - margins_.top, rows = band.end + margins_.top - first;
    const int64_t begin = std::clamp<int64_t>(first + ready, 0, g_.rows.output);
    const int64_t end = std::clamp<int64_t>(first + rows, begin, g_.rows.output);
    const auto zeros = [&](int64_t from, int64_t to) {
      std::fill_n(hidden + from * pitch(), std::max<int64_t>(to - from, 0) * pitch(), T(0));
    };
    zeros(ready, begin - first);
    zeros(std::max(ready, end - first), rows);
    if (begin == end) {
      return;
    }
    const int64_t side = margins_.side * g_.hidden;
    T* row = hidden + (begin - first) * pitch();
    layer_.run({band.image, begin, end}, scratch, row + side, sphere_ ? inverse : nullptr);
    for (int64_t p = begin; p < end; ++p, row += pitch()) {
      std::fill_n(row, side, T(0));
      for (int64_t q = 0; q < g_.columns.output; ++q) {
        activate(row + side + q * g_.hidden, sphere_ ? *inverse++ : T(1));
      }
      std::fill_n(row + pitch() - side, side, T(0));
    }
  }

  // h = relu(scale h + b1) at one position
  void activate(T* h, T scale) const {
    constexpr int width = Vec<T>::size();
    const Vec<T> factor(scale), zero(T(0));
    for (int64_t i = 0; i < g_.hidden; i += width) {
      const int count = static_cast<int>(std::min<int64_t>(width, g_.hidden - i));
      const Vec<T> value = at::vec::fmadd(factor, Vec<T>::loadu(h + i, count),
                                          Vec<T>::loadu(first_shift_ + i, count));
      at::vec::maximum(value, zero).store(h + i, count);
    }
  }

  const PredictorGeometry& g_;
  Margins margins_;
  TileKernels<T> last_kernels_;
  const T *first_shift_, *last_shift_;
  bool sphere_;
  int64_t rows_;
  FirstLayer<T> layer_;
  std::vector<int64_t> from_, taps_, at_;
};

// Weights and their shifts; `first_kernels` and `last_kernels` are predictor_kernels of them.
Tensor predictor_inference(const Tensor& input, const Tensor& first, const Tensor& first_kernels,
                           const Tensor& first_shift, const Tensor& last,
                           const Tensor& last_kernels, const Tensor& last_shift,
                           IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                           bool sphere) {
  const PredictorGeometry g = predictor_geometry(input, first, last, stride, padding, dilation);
  const Tensor output = map_like(g, g.outputs, input);
  if (output.numel() == 0) {
    return output;
  }
  for_type(input.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const auto bands = inference_bands(g, FirstLayer<T>::row_bytes(g));
    const int64_t slots = slots_for(bands.size());
    const InputView<T> x(input);
    const PredictorInference<T> predictor(
        g, x, first_kernels.const_data_ptr<T>(), first_shift.const_data_ptr<T>(),
        last_kernels.const_data_ptr<T>(), last_shift.const_data_ptr<T>(), sphere, tallest(bands));
    Scratch<T> scratch(input, slots, predictor.scratch_size());
    T* to = output.mutable_data_ptr<T>();
    for_slots(slots, static_cast<int64_t>(bands.size()), [&](int64_t slot, Range range) {
      for (int64_t i = range.begin; i < range.end; ++i) {
        const bool follows = i > range.begin && bands[i - 1].image == bands[i].image;
        predictor.run(bands[i], follows ? &bands[i - 1] : nullptr, scratch.slot(slot), to);
      }
    });
  });
  return output;
}

}  // namespace
