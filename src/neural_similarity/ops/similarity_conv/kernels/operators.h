// What one source file defines and another calls. Files are compiled in parallel.
#pragma once

#include <ATen/core/Tensor.h>

namespace neural_similarity {

at::Tensor forward(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& similarity,
                   at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                   int64_t groups, int64_t similarity_groups);

}  // namespace neural_similarity
