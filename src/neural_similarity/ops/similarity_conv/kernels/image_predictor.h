// One M per image: the average of its pixels, two fully connected layers with a ReLU between them,
// a gate, and a factor for every tap of every group. The sizes are tiny: as separate operations
// this would spend its time on their calls.
#pragma once

#include <ATen/ops/mean.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <string_view>
#include <tuple>
#include <vector>

#include "predictor.h"

namespace {

struct ImagePredictor {
  int64_t batch, channels, positions, hidden, outputs;
  int64_t taps;     // with their own factors; those come first
  int64_t groups;   // with their own factors
  int64_t repeats;  // entries of M for each group

  ImagePredictor(const Tensor& input, const Tensor& w1, const Tensor& w2, std::string_view over,
                 int64_t kernel_taps)
      : batch(input.size(0)), channels(input.size(1)), positions(input.size(2) * input.size(3)),
        hidden(w1.size(0)), outputs(w2.size(0)), taps(over == "both" ? kernel_taps : 0),
        groups(outputs - taps), repeats(over == "taps" ? 1 : kernel_taps) {
    TORCH_CHECK(w1.size(1) == channels && w2.size(1) == hidden && groups >= 0,
                "the layers do not fit the input");
  }

  int64_t entries() const { return groups * repeats; }
};

// to[i] = bias[i] + sum_j weight[j, i] x[j]
template <typename T>
void linear(const T* weight, const T* bias, const T* x, int64_t inputs, int64_t outputs, T* to) {
  std::copy_n(bias, outputs, to);
  for (int64_t j = 0; j < inputs; ++j) {
    add_scaled(to, x[j], weight + j * outputs, outputs);
  }
}

// M of one image from the outputs.
template <typename T>
void spread_factors(const ImagePredictor& p, const T* z, T one, T* to) {
  for (int64_t group = 0; group < p.groups; ++group, to += p.repeats) {
    const T factor = z[p.taps + group] + one;
    if (p.taps == 0) {
      std::fill_n(to, p.repeats, factor);
    }
    for (int64_t tap = 0; tap < p.taps; ++tap) {
      to[tap] = factor * (z[tap] + one);
    }
  }
}

// The gradient of the outputs from that of M.
template <typename T>
void gather_factors(const ImagePredictor& p, const T* gm, const T* z, T one, T* to) {
  std::fill_n(to, p.taps, T(0));
  for (int64_t group = 0; group < p.groups; ++group, gm += p.repeats) {
    const T factor = z[p.taps + group] + one;
    T sum = 0;
    for (int64_t tap = 0; tap < p.taps; ++tap) {
      sum += gm[tap] * (z[tap] + one);
      to[tap] += gm[tap] * factor;
    }
    for (int64_t tap = p.taps; tap < p.repeats; ++tap) {
      sum += gm[tap];
    }
    to[p.taps + group] = sum;
  }
}

// M, and what the backward pass needs: the averages, the hidden units, the gated outputs.
std::tuple<Tensor, Tensor, Tensor, Tensor> image_predictor_forward(
    const Tensor& input, const Tensor& w1, const Tensor& b1, const Tensor& w2, const Tensor& b2,
    std::string_view gate, bool residual, std::string_view over, int64_t kernel_taps) {
  const ImagePredictor p(input, w1, w2, over, kernel_taps);
  TORCH_CHECK(b1.numel() == p.hidden && b2.numel() == p.outputs, "a bias does not fit its layer");
  const auto memory = [&](int64_t size) { return at::empty({p.batch, size}, input.options()); };
  const Tensor pooled = input.mean({2, 3}), hidden = memory(p.hidden), gated = memory(p.outputs);
  const Tensor m = at::empty({p.batch, p.entries(), 1, 1}, input.options());
  for_type(input.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Tensor first = w1.t().contiguous(), second = w2.t().contiguous();
    const Tensor first_bias = b1.contiguous(), second_bias = b2.contiguous();
    for (int64_t n = 0; n < p.batch; ++n) {
      T* units = hidden.mutable_data_ptr<T>() + n * p.hidden;
      T* z = gated.mutable_data_ptr<T>() + n * p.outputs;
      linear(first.const_data_ptr<T>(), first_bias.const_data_ptr<T>(),
             pooled.const_data_ptr<T>() + n * p.channels, p.channels, p.hidden, units);
      for (int64_t i = 0; i < p.hidden; ++i) {
        units[i] = units[i] < 0 ? T(0) : units[i];  // NaN stays
      }
      linear(second.const_data_ptr<T>(), second_bias.const_data_ptr<T>(), units, p.hidden,
             p.outputs, z);
      for (int64_t i = 0; gate == "sigmoid" && i < p.outputs; ++i) {
        z[i] /= 2;
      }
    }
    if (gate != "none") {
      gated.tanh_();
    }
    for (int64_t n = 0; n < p.batch; ++n) {
      spread_factors(p, gated.const_data_ptr<T>() + n * p.outputs, T(residual ? 1 : 0),
                     m.mutable_data_ptr<T>() + n * p.entries());
    }
  });
  return {m, pooled, hidden, gated};
}

// The gradients of the average over its pixels (the same for all of them), and of the layers.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> image_predictor_backward(
    const Tensor& grad_output, const Tensor& input, const Tensor& w1, const Tensor& w2,
    const Tensor& pooled, const Tensor& hidden, const Tensor& gated, std::string_view gate,
    bool residual, std::string_view over, int64_t kernel_taps) {
  const ImagePredictor p(input, w1, w2, over, kernel_taps);
  const auto zeros = [&](at::IntArrayRef size) { return at::zeros(size, input.options()); };
  const Tensor share = zeros({p.batch, p.channels});
  const Tensor gw1 = zeros(w1.sizes()), gb1 = zeros({p.hidden});
  const Tensor gw2 = zeros(w2.sizes()), gb2 = zeros({p.outputs});
  const Tensor gradient = grad_output.contiguous(), first = w1.contiguous(), last = w2.contiguous();
  const bool is_gated = gate != "none";
  for_type(input.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T *upper = gradient.const_data_ptr<T>(), *gates = gated.const_data_ptr<T>();
    const T *all_units = hidden.const_data_ptr<T>(), *means = pooled.const_data_ptr<T>();
    const T *w_first = first.const_data_ptr<T>(), *w_last = last.const_data_ptr<T>();
    T *to_w1 = gw1.mutable_data_ptr<T>(), *to_b1 = gb1.mutable_data_ptr<T>();
    T *to_w2 = gw2.mutable_data_ptr<T>(), *to_b2 = gb2.mutable_data_ptr<T>();
    T* to = share.mutable_data_ptr<T>();
    const T slope(gate == "sigmoid" ? 0.5 : 1), pixels(p.positions);
    std::vector<T> to_z(p.outputs), to_hidden(p.hidden);
    for (int64_t n = 0; n < p.batch; ++n, to += p.channels) {
      const T *z = gates + n * p.outputs, *units = all_units + n * p.hidden;
      gather_factors(p, upper + n * p.entries(), z, T(residual ? 1 : 0), to_z.data());
      std::fill(to_hidden.begin(), to_hidden.end(), T(0));
      for (int64_t i = 0; i < p.outputs; ++i) {
        to_z[i] *= is_gated ? slope * (1 - z[i] * z[i]) : T(1);
        add_scaled(to_w2 + i * p.hidden, to_z[i], units, p.hidden);
        add_scaled(to_hidden.data(), to_z[i], w_last + i * p.hidden, p.hidden);
      }
      add(to_b2, to_z.data(), p.outputs);
      for (int64_t i = 0; i < p.hidden; ++i) {
        to_hidden[i] = units[i] <= 0 ? T(0) : to_hidden[i];
        add_scaled(to_w1 + i * p.channels, to_hidden[i], means + n * p.channels, p.channels);
        add_scaled(to, to_hidden[i] / pixels, w_first + i * p.channels, p.channels);
      }
      add(to_b1, to_hidden.data(), p.hidden);
    }
  });
  return {share, gw1, gb1, gw2, gb2};
}

}  // namespace
