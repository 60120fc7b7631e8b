// The paper's predictor as one operator: two convolutions, patch lengths, two BatchNorms, a ReLU.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <tuple>

#include "predictor_input.h"

namespace {

// Mean, variance, and the rounding error of the mean, as rows of a tensor, and back: the gradient
// of a gain sums differences from the mean over the batch, which would add up that error.
template <typename T>
Tensor stored(const Statistics& s, const Tensor& like) {
  const int64_t channels = static_cast<int64_t>(s.mean.size());
  Tensor rows = at::empty({3, channels}, like.options());
  T* to = rows.mutable_data_ptr<T>();
  std::copy(s.mean.begin(), s.mean.end(), to);
  std::copy(s.variance.begin(), s.variance.end(), to + channels);
  for (int64_t c = 0; c < channels; ++c) {
    to[2 * channels + c] = static_cast<T>(s.mean[c] - static_cast<double>(to[c]));
  }
  return rows;
}

template <typename T>
Statistics restored(const Tensor& rows, int64_t count) {
  const T* from = rows.const_data_ptr<T>();
  const int64_t channels = rows.size(1);
  Statistics s{std::vector<double>(from, from + channels),
               std::vector<double>(from + channels, from + 2 * channels), count};
  for (int64_t c = 0; c < channels; ++c) {
    s.mean[c] += static_cast<double>(from[2 * channels + c]);
  }
  return s;
}

template <typename T>
Tensor stored(const std::vector<double>& values, const Tensor& like) {
  Tensor row = at::empty({static_cast<int64_t>(values.size())}, like.options());
  std::copy(values.begin(), values.end(), row.mutable_data_ptr<T>());
  return row;
}

Tensor map_like(const PredictorGeometry& g, int64_t channels, const Tensor& input) {
  return at::empty({g.batch, channels, g.rows.output, g.columns.output}, input.options(),
                   at::MemoryFormat::ChannelsLast);
}

// Returns the output, u, the inverse lengths, z, and the statistics of u and z.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> predictor_forward(
    const Tensor& input, const Tensor& first_weight, const Tensor& first_gain,
    const Tensor& first_bias, double first_eps, const Tensor& last_weight,
    const Tensor& last_gain, const Tensor& last_bias, double last_eps, IntArrayRef stride,
    IntArrayRef padding, IntArrayRef dilation) {
  const PredictorGeometry g =
      predictor_geometry(input, first_weight, last_weight, stride, padding, dilation);
  TORCH_CHECK(g.positions() > 0 && g.channels > 0, "the input is empty");
  const Tensor u = map_like(g, g.hidden, input), z = map_like(g, g.outputs, input);
  const Tensor output = map_like(g, g.outputs, input);
  const Tensor inverse =
      at::empty({g.batch, g.rows.output, g.columns.output}, input.options());
  const Tensor first = first_weight.contiguous(), last = last_weight.contiguous();
  const Tensor gains[] = {first_gain.contiguous(), last_gain.contiguous()};
  const Tensor biases[] = {first_bias.contiguous(), last_bias.contiguous()};
  Tensor first_rows, last_rows;
  for_type(input.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Statistics s = run_first(g, input, first.const_data_ptr<T>(), u.mutable_data_ptr<T>(),
                                   inverse.mutable_data_ptr<T>());
    const Affine<T> norm(s, gains[0].const_data_ptr<T>(), biases[0].const_data_ptr<T>(),
                         first_eps);
    const Statistics t = run_last(g, input, norm, last.const_data_ptr<T>(),
                                  u.const_data_ptr<T>(), z.mutable_data_ptr<T>());
    normalize(Affine<T>(t, gains[1].const_data_ptr<T>(), biases[1].const_data_ptr<T>(), last_eps),
              z.const_data_ptr<T>(), output.mutable_data_ptr<T>(), g.positions(), g.outputs);
    first_rows = stored<T>(s, input), last_rows = stored<T>(t, input);
  });
  return {output, u, inverse, z, first_rows, last_rows};
}

// Returns the gradients of input (empty unless requested), of weight, gain and bias of the first
// layer, and of weight, gain and bias of the last.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> predictor_backward(
    const Tensor& grad_output, const Tensor& input, const Tensor& first_weight,
    const Tensor& first_gain, const Tensor& first_bias, double first_eps,
    const Tensor& last_weight, const Tensor& last_gain, double last_eps, const Tensor& u,
    const Tensor& inverse, const Tensor& z, const Tensor& first_rows, const Tensor& last_rows,
    IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool input_gradient) {
  const PredictorGeometry g =
      predictor_geometry(input, first_weight, last_weight, stride, padding, dilation);
  TORCH_CHECK(grad_output.sizes() == z.sizes(), "the gradient does not fit the output");
  const Tensor gradient = grad_output.contiguous(at::MemoryFormat::ChannelsLast);
  const Tensor first = first_weight.contiguous(), last = last_weight.contiguous();
  const Tensor gains[] = {first_gain.contiguous(), last_gain.contiguous()};
  const Tensor bias = first_bias.contiguous();
  Tensor gx = at::empty({0}, input.options());
  if (input_gradient) {
    gx = at::empty(input.sizes(), input.options(), at::MemoryFormat::ChannelsLast);
  }
  Tensor gw_first = at::empty(first_weight.sizes(), input.options());
  Tensor gw_last = at::empty(last_weight.sizes(), input.options());
  Tensor parameters[4];
  for_type(input.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Statistics s = restored<T>(first_rows, g.positions());
    const Statistics t = restored<T>(last_rows, g.positions());
    const Saved<T> saved{u.const_data_ptr<T>(), inverse.const_data_ptr<T>(),
                         z.const_data_ptr<T>()};
    const T* from = gradient.const_data_ptr<T>();
    auto sums = gradient_sums(t, from, saved.z, g.positions(), g.outputs);
    const NormGradient<T> last_norm(t, sums, gains[1].const_data_ptr<T>(), last_eps);
    const Affine<T> norm(s, gains[0].const_data_ptr<T>(), bias.const_data_ptr<T>(), first_eps);
    const Tensor gh = at::empty_like(u);
    sums = run_last_gradient(g, input, norm, s, last_norm, saved, last.const_data_ptr<T>(), from,
                             gh.mutable_data_ptr<T>(), gw_last);
    const NormGradient<T> first_norm(s, sums, gains[0].const_data_ptr<T>(), first_eps);
    run_first_gradient(g, input, first_norm, saved, first.const_data_ptr<T>(),
                       gh.const_data_ptr<T>(), input_gradient ? gx.mutable_data_ptr<T>() : nullptr,
                       gw_first);
    parameters[0] = stored<T>(first_norm.gain, input);
    parameters[1] = stored<T>(first_norm.bias, input);
    parameters[2] = stored<T>(last_norm.gain, input);
    parameters[3] = stored<T>(last_norm.bias, input);
  });
  return {gx, gw_first, parameters[0], parameters[1], gw_last, parameters[2], parameters[3]};
}

}  // namespace
