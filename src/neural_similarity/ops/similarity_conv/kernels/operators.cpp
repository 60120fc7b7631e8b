// The similarity convolution on the CPU: forward and backward, diagonal and full similarity.
//
//   y[n,o,l] = sum_c sum_i sum_j W[o,c,i] * M[n,i,j,l] * X[n,c,j,l]      (full)
//   y[n,o,l] = sum_c sum_k       W[o,c,k] * m[n,s,k,l] * X[n,c,k,l]      (diagonal, s group of c)
//   y[n,o,l] = sum_c sum_k       W[o,c,k] * b[n,k,l] * a[n,c,l] * X[n,c,k,l]          (factored)
//
// How it is made fast.  A plain convolution is a matrix product whose left factor, the patches, is
// never stored.  Here the patches are weighted by the similarity first, so a *panel* of them is
// stored: the weighted patches of some 150 positions, few enough that the panel never leaves the
// second-level cache.  The panel is then multiplied with the weights by a register tile.  The cost
// over a plain convolution is one multiplication and one cached store per patch element, against
// as many multiply-adds per patch element as there are output channels.
//
// The backward pass uses the same panels.  Per panel: one product G = gy W^T; one pass over the
// rows of G that computes the gradient of the similarity as dot products with X, adds that of
// the input in place, and overwrites G with the weighted patches; one product of those with gy
// into a gradient of the weights that each thread owns.
//
// Layout.  Input, output and their gradients are channels-last, so that a patch element is a run of
// channels; if they are not, a worker copies a few images at a time (images.h).  Panels cover a
// *block of taps* at a time: with many channels that bounds the panel and keeps a column tile of
// the weights in the first-level cache.
//
// Results depend on the number of threads (partial sums) but on nothing else that varies.

#include <torch/library.h>

#include <array>
#include <tuple>

#include "backward.h"
#include "forward.h"
#include "image_backward.h"
#include "image_forward.h"
#include "operators.h"
#include "planar.h"

namespace {

// The memory format of results: channels-last if the input's channels are adjacent.
at::MemoryFormat format_of(const Tensor& input) {
  const bool last = input.stride(1) == 1 && input.stride(3) != 1;
  return last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
}

// Whether workers can take images as they lie in memory.
bool takes_planar(const Geometry& g) { return !worth_own_kernels(g) && enough_images(g); }

Tensor images_of(const Geometry& g, const Tensor& images) {
  const bool as_they_lie = takes_planar(g) && is_planar(images);
  return as_they_lie ? images : in_format(images, at::MemoryFormat::ChannelsLast);
}

at::MemoryFormat result_format(const Geometry& g, const Tensor& input) {
  return takes_planar(g) ? format_of(input) : at::MemoryFormat::ChannelsLast;
}

using Gradients = std::tuple<Tensor, Tensor, Tensor>;

Gradients gradients_of(const Geometry& g, const Tensor& grad_output, const Tensor& input,
                       const Tensor& weight, const Tensor& similarity, std::array<bool, 3> mask) {
  TORCH_CHECK(grad_output.sizes() == IntArrayRef({g.batch, g.outputs, g.out_h, g.out_w}) &&
                  grad_output.scalar_type() == input.scalar_type(),
              "the gradient does not fit the output");
  const Wanted wanted{mask[0], mask[1], mask[2]};
  const Tensor gy = images_of(g, grad_output), x = images_of(g, input);
  const Tensor w = weight.contiguous();
  const auto none = [&] { return at::empty({0}, input.options()); };
  Tensor gx = none(), gw = none(), gm = none();
  if (wanted.input) {
    gx = at::empty(input.sizes(), input.options(), result_format(g, input));
  }
  if (wanted.weight) {
    gw = at::empty(weight.sizes(), weight.options());
  }
  if (wanted.similarity) {
    gm = gradient_memory(g, similarity);
  }
  if (gy.numel() == 0 || g.channels == 0) {
    gx.zero_(), gw.zero_(), gm.zero_();
  } else if (wanted.input || wanted.weight || wanted.similarity) {
    for_type(x.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      if (worth_planes<T>(g, similarity)) {
        backward_planes<T>(g, grad_output.contiguous(), input.contiguous(), w, similarity, wanted,
                           gx, gw, gm);
      } else if (!worth_own_kernels(g) ||
          !backward_images<T>(g, gy, x, w, similarity, wanted, gx, gw, gm)) {
        backward_typed<T>(g, gy, x, w, similarity, wanted, gx, gw, gm);
      }
    });
  }
  if (wanted.input) {
    gx = in_format(gx, format_of(input));
  }
  return {gx, gw, gm};
}

Tensor output_of(const Geometry& g, const Tensor& input, const Tensor& weight,
                 const Tensor& similarity) {
  const Tensor x = images_of(g, input);
  const bool in_place = weight.is_contiguous(at::MemoryFormat::ChannelsLast) && !g.depthwise();
  const Tensor w = in_place ? weight : weight.contiguous();
  Tensor y = at::empty({g.batch, g.outputs, g.out_h, g.out_w}, input.options(),
                       result_format(g, input));
  if (y.numel() == 0 || g.channels == 0) {
    return in_format(y.zero_(), format_of(input));
  }
  for_type(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    if (worth_planes<T>(g, similarity)) {
      y = at::empty(y.sizes(), y.options());
      forward_planes<T>(g, input.contiguous(), w, similarity, y);
    } else if (worth_own_kernels(g)) {
      forward_images<T>(g, x, w, similarity, y);
    } else {
      forward_typed<T>(g, x, w, similarity, y);
    }
  });
  return in_format(y, format_of(input));
}

Gradients backward(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                   const Tensor& similarity, IntArrayRef stride, IntArrayRef padding,
                   IntArrayRef dilation, int64_t groups, int64_t similarity_groups,
                   std::array<bool, 3> mask) {
  const Geometry g = geometry_of(input, weight, similarity, stride, padding, dilation, groups,
                                 similarity_groups);
  return gradients_of(g, grad_output, input, weight, similarity, mask);
}

// The factors of a position adjacent in memory.
Tensor factors_last(const Tensor& factors) {
  TORCH_CHECK(factors.dim() == 4, "factors must have 4 axes");
  return in_format(factors, at::MemoryFormat::ChannelsLast);
}

Tensor factored_forward(const Tensor& input, const Tensor& weight, const Tensor& factors,
                        IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                        int64_t groups) {
  const Tensor last = factors_last(factors);
  const Geometry g = factored_geometry(input, weight, last, stride, padding, dilation, groups);
  return output_of(g, input, weight, last);
}

Gradients factored_backward(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                            const Tensor& factors, IntArrayRef stride, IntArrayRef padding,
                            IntArrayRef dilation, int64_t groups, std::array<bool, 3> mask) {
  const Tensor last = factors_last(factors);
  const Geometry g = factored_geometry(input, weight, last, stride, padding, dilation, groups);
  return gradients_of(g, grad_output, input, weight, last, mask);
}

}  // namespace

Tensor neural_similarity::forward(const Tensor& input, const Tensor& weight,
                                  const Tensor& similarity, IntArrayRef stride,
                                  IntArrayRef padding, IntArrayRef dilation, int64_t groups,
                                  int64_t similarity_groups) {
  const Geometry g = geometry_of(input, weight, similarity, stride, padding, dilation, groups,
                                 similarity_groups);
  return output_of(g, input, weight, similarity);
}

TORCH_LIBRARY(neural_similarity_cpu, library) {
  library.def(
      "forward(Tensor input, Tensor weight, Tensor similarity, int[2] stride, int[2] padding, "
      "int[2] dilation, int groups, int similarity_groups) -> Tensor");
  library.def(
      "backward(Tensor grad_output, Tensor input, Tensor weight, Tensor similarity, "
      "int[2] stride, int[2] padding, int[2] dilation, int groups, int similarity_groups, "
      "bool[3] mask) -> (Tensor, Tensor, Tensor)");
  library.def(
      "factored_forward(Tensor input, Tensor weight, Tensor factors, int[2] stride, "
      "int[2] padding, int[2] dilation, int groups) -> Tensor");
  library.def(
      "factored_backward(Tensor grad_output, Tensor input, Tensor weight, Tensor factors, "
      "int[2] stride, int[2] padding, int[2] dilation, int groups, bool[3] mask) "
      "-> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(neural_similarity_cpu, CPU, library) {
  library.impl("forward", TORCH_FN(neural_similarity::forward));
  library.impl("backward", TORCH_FN(backward));
  library.impl("factored_forward", TORCH_FN(factored_forward));
  library.impl("factored_backward", TORCH_FN(factored_backward));
}
