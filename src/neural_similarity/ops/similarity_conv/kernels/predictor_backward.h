// The predictor's backward pass, from the gradient g of its output.
//
// Three passes over the batch. First the sums that norm2 needs. Then, band by band, the gradient of
// z, and from it those of W2 and of h, with the sums that norm1 needs. Then the gradient of the
// first convolution, and from it those of W1 and x. The length of a patch adds -x q to the
// gradient of its pixels, where q = (gu . u) / |patch|^2.
#pragma once

#include <ATen/ops/zeros.h>

#include <vector>

#include "predictor_forward.h"

namespace {

// What the forward pass saved, and its operands.
template <typename T>
struct Saved {
  const T *u, *inverse, *z;
};

template <typename T>
class LastGradient {
 public:
  LastGradient(const PredictorGeometry& g, const Affine<T>& first_norm,
               const NormGradient<T>& norm, const Saved<T>& saved, const T* weight, int64_t rows)
      : g_(g), first_norm_(first_norm), norm_(norm), saved_(saved), margins_(g), rows_(rows),
        kernels_(g.hidden, g.last_taps(), g.outputs,
                 [&](int64_t o, int64_t tap, int64_t c) {  // taps in reverse
                   return weight[(c * g.hidden + o) * g.last_taps() + g.last_taps() - 1 - tap];
                 }),
        from_(margins_.windows(g, rows, g.outputs)), taps_(margins_.taps(g, g.outputs)),
        at_(consecutive(rows * g.columns.output, g.hidden)) {}

  int64_t scratch_size() const {
    return margins_.size(rows_, g_.outputs) + hidden_size() + kColumns<T>;
  }
  static int64_t sums_size(const PredictorGeometry& g) {  // [tap][output][hidden]
    return g.last_taps() * g.outputs * round_up(g.hidden, Vec<T>::size());
  }

  // Writes the gradient of norm1's output at the positions of a band to gh.
  void run(Band band, const T* gradient, T* scratch, T* gh, T* weight_sums,
           ChannelSums<T>& sums) const {
    T* hidden = scratch;
    T* gz = scratch + hidden_size();
    const int64_t columns = g_.columns.output;
    margins_.fill(g_, band, g_.hidden, hidden, [&](int64_t place, T* to) {
      hidden_row(first_norm_, saved_.u + place * g_.hidden, to, columns * g_.hidden);
    });
    margins_.fill(g_, band, g_.outputs, gz, [&](int64_t place, T* to) {
      const T* g = gradient + place * g_.outputs;
      const T* z = saved_.z + place * g_.outputs;
      for_vectors<T>(columns * g_.outputs, norm_.period(), [&](int64_t i, int64_t j, int count) {
        norm_(Vec<T>::loadu(g + i, count), Vec<T>::loadu(z + i, count), j).store(to + i, count);
      });
    });
    add_weight_gradient(band.end - band.begin, hidden, gz, weight_sums);
    const int64_t first = band.image * g_.places() + band.begin * columns;
    const int64_t count = (band.end - band.begin) * columns;
    convolve<T>({gz, from_.data(), taps_.data(), g_.outputs}, count, kernels_,
                {gh + first * g_.hidden, at_.data()}, false);
    close_relu(band, hidden, gh + first * g_.hidden);
    sums.add(gh + first * g_.hidden, saved_.u + first * g_.hidden, count);
  }

 private:
  int64_t hidden_size() const { return margins_.size(rows_, g_.hidden) + kColumns<T>; }

  void add_weight_gradient(int64_t rows, const T* hidden, const T* gz, T* sums) const {
    const int64_t row = margins_.pitch, h = g_.hidden, o = g_.outputs;
    const T* own = gz + (margins_.top * row + margins_.side) * o;
    for (int64_t tap = 0; tap < g_.last_taps(); ++tap) {
      const T* under = hidden + (tap / g_.last_w * row + tap % g_.last_w) * h;
      correlate<T>({own, row * o, o}, o, {under, row * h, h}, h, rows, g_.columns.output,
                   sums + tap * o * round_up(h, Vec<T>::size()));
    }
  }

  // No gradient where the ReLU gave zero; NaN passes, as in PyTorch.
  void close_relu(Band band, const T* hidden, T* gh) const {
    const int64_t size = g_.columns.output * g_.hidden;
    const T* from = hidden + (margins_.top * margins_.pitch + margins_.side) * g_.hidden;
    for (int64_t p = band.begin; p < band.end; ++p, gh += size) {
      for_vectors<T>(size, Vec<T>::size(), [&](int64_t i, int64_t, int count) {
        const Vec<T> h = Vec<T>::loadu(from + i, count), zero(T(0));
        Vec<T>::blendv(Vec<T>::loadu(gh + i, count), zero, h <= zero).store(gh + i, count);
      });
      from += margins_.pitch * g_.hidden;
    }
  }

  const PredictorGeometry& g_;
  const Affine<T>& first_norm_;
  const NormGradient<T>& norm_;
  const Saved<T>& saved_;
  Margins margins_;
  int64_t rows_;
  TileKernels<T> kernels_;
  std::vector<int64_t> from_, taps_, at_;
};

// Sums over the whole map for norm2's gradient.
template <typename T>
std::vector<ChannelSums<T>> gradient_sums(const Statistics& s, const T* g, const T* z,
                                          int64_t positions, int64_t channels) {
  const int64_t slots = slots_for(static_cast<size_t>(ceil_div(positions, 4096)));
  std::vector<ChannelSums<T>> sums(slots, ChannelSums<T>(channels));
  for_slots(slots, positions, [&](int64_t slot, Range range) {
    sums[slot].set_shift(s.mean);
    sums[slot].add(g + range.begin * channels, z + range.begin * channels,
                   range.end - range.begin);
  });
  return sums;
}

template <typename T>
std::vector<ChannelSums<T>> run_last_gradient(const PredictorGeometry& g, const Tensor& like,
                                              const Affine<T>& first_norm,
                                              const Statistics& first,
                                              const NormGradient<T>& norm, const Saved<T>& saved,
                                              const T* weight, const T* gradient, T* gh,
                                              Tensor& weight_gradient) {
  const auto bands = bands_of(g.batch, g.rows.output,
                              g.columns.output * g.hidden * 2 * static_cast<int64_t>(sizeof(T)));
  const int64_t slots = slots_for(bands.size());
  const LastGradient<T> layer(g, first_norm, norm, saved, weight, tallest(bands));
  Scratch<T> scratch(like, slots, layer.scratch_size());
  const Tensor parts = at::zeros({slots, LastGradient<T>::sums_size(g)}, like.options());
  std::vector<ChannelSums<T>> sums(slots, ChannelSums<T>(g.hidden));
  for_slots(slots, static_cast<int64_t>(bands.size()), [&](int64_t slot, Range range) {
    sums[slot].set_shift(first.mean);
    T* mine = parts.mutable_data_ptr<T>() + slot * parts.size(1);
    for (int64_t i = range.begin; i < range.end; ++i) {
      layer.run(bands[i], gradient, scratch.slot(slot), gh, mine, sums[slot]);
    }
  });
  // [slot][tap][output][hidden, padded] to (outputs, hidden, kernel)
  const Tensor sum = parts.sum(0).view({g.last_taps(), g.outputs, -1}).narrow(2, 0, g.hidden);
  weight_gradient.copy_(sum.permute({1, 2, 0}).reshape(weight_gradient.sizes()));
  return sums;
}

}  // namespace
