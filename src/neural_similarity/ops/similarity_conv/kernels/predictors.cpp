// Networks that predict a similarity: the paper's, and the one that reads the whole image.

#include <ATen/ops/add.h>
#include <torch/library.h>

#include <cstring>
#include <optional>

#include "image_predictor.h"
#include "operators.h"
#include "predictor_inference.h"

namespace {

// A dynamic layer in evaluation mode: M is what predictor_inference returns plus `start`.
Tensor layer_inference(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                       const Tensor& start, const Tensor& first, const Tensor& first_kernels,
                       const Tensor& first_shift, const Tensor& last, const Tensor& last_kernels,
                       const Tensor& last_shift, IntArrayRef stride, IntArrayRef padding,
                       IntArrayRef dilation, int64_t groups) {
  const Tensor similarity =
      predictor_inference(input, first, first_kernels, first_shift, last, last_kernels,
                          at::add(last_shift, start), stride, padding, dilation, /*sphere=*/true);
  Tensor output = neural_similarity::forward(input, weight, similarity, stride, padding, dilation,
                                            groups, 1);
  if (bias.has_value()) {
    output.add_(bias->view({-1, 1, 1}));
  }
  return output;
}

// Whether all tensors have the bytes of their copies.
bool unchanged(at::TensorList copies, at::TensorList tensors) {
  TORCH_CHECK(copies.size() == tensors.size(), "one copy for each tensor");
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor &a = copies[i], &b = tensors[i];
    const bool alike = a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
        a.strides() == b.strides() && a.is_non_overlapping_and_dense();
    if (!alike || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(neural_similarity_cpu, library) {
  library.def(
      "predictor_forward(Tensor input, Tensor first_weight, Tensor first_gain, Tensor first_bias, "
      "float first_eps, Tensor last_weight, Tensor last_gain, Tensor last_bias, float last_eps, "
      "int[2] stride, int[2] padding, int[2] dilation) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  library.def(
      "predictor_backward(Tensor grad_output, Tensor input, Tensor first_weight, "
      "Tensor first_gain, Tensor first_bias, float first_eps, Tensor last_weight, "
      "Tensor last_gain, float last_eps, Tensor u, Tensor inverse, Tensor z, Tensor first_rows, "
      "Tensor last_rows, int[2] stride, int[2] padding, int[2] dilation, bool input_gradient) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  library.def("predictor_kernels(Tensor weight) -> Tensor");
  library.def(
      "predictor_inference(Tensor input, Tensor first, Tensor first_kernels, Tensor first_shift, "
      "Tensor last, Tensor last_kernels, Tensor last_shift, int[2] stride, int[2] padding, "
      "int[2] dilation, bool sphere) -> Tensor");
  library.def(
      "layer_inference(Tensor input, Tensor weight, Tensor? bias, Tensor start, Tensor first, "
      "Tensor first_kernels, Tensor first_shift, Tensor last, Tensor last_kernels, "
      "Tensor last_shift, int[2] stride, int[2] padding, int[2] dilation, int groups) -> Tensor");
  library.def("unchanged(Tensor[] copies, Tensor[] tensors) -> bool");
  library.def(
      "image_predictor_forward(Tensor input, Tensor first_weight, Tensor first_bias, "
      "Tensor last_weight, Tensor last_bias, str gate, bool residual, str over, int taps) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  library.def(
      "image_predictor_backward(Tensor grad_output, Tensor input, Tensor first_weight, "
      "Tensor last_weight, Tensor pooled, Tensor hidden, Tensor gated, str gate, bool residual, "
      "str over, int taps) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(neural_similarity_cpu, CPU, library) {
  library.impl("predictor_forward", TORCH_FN(predictor_forward));
  library.impl("predictor_backward", TORCH_FN(predictor_backward));
  library.impl("predictor_kernels", TORCH_FN(predictor_kernels));
  library.impl("predictor_inference", TORCH_FN(predictor_inference));
  library.impl("layer_inference", TORCH_FN(layer_inference));
  library.impl("unchanged", TORCH_FN(unchanged));
  library.impl("image_predictor_forward", TORCH_FN(image_predictor_forward));
  library.impl("image_predictor_backward", TORCH_FN(image_predictor_backward));
}
