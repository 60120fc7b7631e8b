// Sizes of one call, and how its work is split to fit the caches.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "products.h"

namespace {

using at::IntArrayRef;
using at::Tensor;

// Calls f with a zero of the type.
template <typename F>
void for_type(at::ScalarType type, const F& f) {
  if (type == at::kFloat) {
    f(float());
  } else {
    TORCH_CHECK(type == at::kDouble, "float32 and float64 only");
    f(double());
  }
}

struct Geometry {
  int64_t batch, channels, height, width, outputs, groups;
  int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  int64_t out_h, out_w;
  int64_t similarity_groups;     // of neighbouring channels, each with its own similarity
  int64_t factor_h, factor_w;    // the map of similarities: the output's sides, or 1 for all
  int64_t lanes;                 // factors per tap, see lanes_of
  bool full;                     // a K x K similarity per position rather than K
  bool factored;                 // a factor per channel, times one per tap if there are any
  int64_t tap_factors;           // of a factored similarity: K, or 0; they come first
  bool shared;                   // one similarity for the whole batch
  bool taps_last;                // in the memory of the similarity's gradient
  bool dense;                    // and the similarity itself is in that order, without gaps

  int64_t taps() const { return kernel_h * kernel_w; }
  int64_t factors() const {                                             // of one position
    return factored ? tap_factors + channels : taps() * (full ? taps() : lanes);
  }
  int64_t places() const { return out_h * out_w; }                      // positions per sample
  int64_t entries() const { return taps() * (full ? taps() : similarity_groups); }
  bool per_image() const { return factor_h == 1 && factor_w == 1 && !factored; }
  // Whether one entry of the similarity serves several positions, and sums their gradients.
  bool collects() const { return shared || factor_h != out_h || factor_w != out_w; }
  // Whether the factors of a position are adjacent, as a worker needs them: no copy is needed.
  bool in_place() const { return dense && !collects() && (full || factored || lanes == 1); }
  int64_t group_channels() const { return channels / groups; }
  int64_t group_outputs() const { return outputs / groups; }

  // With one channel and one output per group there is no matrix product.  A panel then
  // holds the channels of all groups, and is multiplied with the weights element by element.
  bool depthwise() const { return groups > 1 && groups == channels && groups == outputs; }
  int64_t panel_groups() const { return depthwise() ? 1 : groups; }
  int64_t panel_channels() const { return channels / panel_groups(); }

  // The lanes of one panel: some for every group of the convolution, or one for several.
  int64_t panel_lanes() const { return std::max<int64_t>(lanes / panel_groups(), 1); }
  int64_t lane_channels() const { return panel_channels() / panel_lanes(); }
  int64_t first_lane(int64_t group) const { return group * lanes / panel_groups(); }
};

// Whether taps are adjacent in memory, as in the output of a channels-last predictor.
// Strides alone decide, as in pieces.py.
bool has_taps_last(const Tensor& similarity) {
  return similarity.stride(similarity.dim() - 3) == 1 && similarity.stride(-1) != 1;
}

// The order of axes with taps last.
std::vector<int64_t> taps_last_axes(const Tensor& similarity) {
  return similarity.dim() == 5 ? std::vector<int64_t>{0, 3, 4, 1, 2}
                               : std::vector<int64_t>{0, 2, 3, 1};
}

// Memory for the gradient of a similarity: dense, and in the order that the geometry says.
Tensor gradient_memory(const Geometry& g, const Tensor& similarity) {
  if (!g.taps_last) {
    return at::empty(similarity.sizes(), similarity.options());
  }
  const Tensor memory =
      at::empty(similarity.permute(taps_last_axes(similarity)).sizes(), similarity.options());
  return similarity.dim() == 5 ? memory.permute({0, 3, 4, 1, 2}) : memory.permute({0, 3, 1, 2});
}

// A tap has a factor per group of channels. Groups narrower than a vector would leave part of it
// empty, so their factors are repeated for every channel, and multiplied element by element. The
// loops of a panel can also work with half a vector.
int64_t lanes_of(const Geometry& g, int64_t groups, int64_t element_size) {
  if (groups <= 1) {
    return groups;
  }
  const int64_t width = Vec<float>::size() * sizeof(float) / element_size;
  const int64_t each = g.channels / groups;
  const bool narrow = each < width && (each != width / 2 || g.depthwise());
  return narrow ? g.channels : groups;
}

int64_t output_size(int64_t size, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation) {
  const int64_t span = size + 2 * pad - dilation * (kernel - 1) - 1;
  return span < 0 ? 0 : span / stride + 1;
}

// The sizes of the convolution, without the similarity.
Geometry convolution_of(const Tensor& input, const Tensor& weight, IntArrayRef stride,
                        IntArrayRef padding, IntArrayRef dilation, int64_t groups) {
  TORCH_CHECK(input.dim() == 4 && weight.dim() == 4, "input and weight must have 4 axes");
  Geometry g{};
  g.batch = input.size(0), g.channels = input.size(1);
  g.height = input.size(2), g.width = input.size(3);
  g.outputs = weight.size(0), g.kernel_h = weight.size(2), g.kernel_w = weight.size(3);
  TORCH_CHECK(g.taps() > 0, "the kernel must have taps");
  g.groups = groups;
  g.stride_h = stride[0], g.stride_w = stride[1];
  g.pad_h = padding[0], g.pad_w = padding[1];
  g.dilation_h = dilation[0], g.dilation_w = dilation[1];
  g.out_h = output_size(g.height, g.kernel_h, g.stride_h, g.pad_h, g.dilation_h);
  g.out_w = output_size(g.width, g.kernel_w, g.stride_w, g.pad_w, g.dilation_w);
  TORCH_CHECK(groups > 0 && g.channels == weight.size(1) * groups && g.outputs % groups == 0,
              "weight and groups do not fit the input");
  return g;
}

void check_types(const Tensor& input, const Tensor& weight, const Tensor& similarity) {
  TORCH_CHECK(input.scalar_type() == weight.scalar_type() &&
                  input.scalar_type() == similarity.scalar_type(),
              "input, weight and similarity must have one dtype");
}

Geometry geometry_of(const Tensor& input, const Tensor& weight, const Tensor& similarity,
                     IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, int64_t groups,
                     int64_t similarity_groups) {
  TORCH_CHECK(similarity.dim() == 4 || similarity.dim() == 5, "similarity must have 4 or 5 axes");
  check_types(input, weight, similarity);
  Geometry g = convolution_of(input, weight, stride, padding, dilation, groups);
  g.full = similarity.dim() == 5;
  g.shared = similarity.size(0) == 1;
  g.taps_last = has_taps_last(similarity);
  g.dense = g.taps_last && similarity.permute(taps_last_axes(similarity)).is_contiguous();
  g.similarity_groups = similarity_groups;
  g.factor_h = similarity.size(-2), g.factor_w = similarity.size(-1);
  g.lanes = lanes_of(g, similarity_groups, input.element_size());
  TORCH_CHECK(similarity_groups > 0 && g.channels % similarity_groups == 0 &&
                  (groups % similarity_groups == 0 || similarity_groups % groups == 0),
              "similarity_groups do not fit the channels and groups");
  const bool fits = (g.shared || similarity.size(0) == g.batch) &&
      (g.factor_h == g.out_h || g.factor_h == 1) && (g.factor_w == g.out_w || g.factor_w == 1) &&
      (g.full ? similarity_groups == 1 && similarity.size(1) == g.taps() &&
                    similarity.size(2) == g.taps()
              : similarity.size(1) == similarity_groups * g.taps());
  TORCH_CHECK(fits, "similarity does not fit the geometry");
  return g;
}

// With a factor for each channel and, unless there are none, one for each tap before them; at every
// position, and with the factors of a position adjacent in memory.
Geometry factored_geometry(const Tensor& input, const Tensor& weight, const Tensor& factors,
                           IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                           int64_t groups) {
  check_types(input, weight, factors);
  Geometry g = convolution_of(input, weight, stride, padding, dilation, groups);
  g.factored = g.taps_last = g.dense = true;
  g.factor_h = g.out_h, g.factor_w = g.out_w;
  g.similarity_groups = g.lanes = g.channels;  // not used for a factored similarity
  TORCH_CHECK(!g.depthwise(), "the convolution must not be depthwise");
  g.tap_factors = factors.size(1) == g.channels ? 0 : g.taps();
  TORCH_CHECK(factors.sizes() == IntArrayRef({g.batch, g.factors(), g.out_h, g.out_w}) &&
                  factors.permute({0, 2, 3, 1}).is_contiguous(),
              "factors do not fit the geometry");
  return g;
}

// How the work is split.  The depth of a block (taps x channels of a group) is kept near 320: deep
// enough to hide the loads and stores of the register tile, shallow enough that a column tile of
// the weights stays in the first-level cache.
template <typename T>
struct Blocking {
  int64_t taps;       // per block, the last may have fewer
  int64_t blocks;
  int64_t depth;      // of a whole block
  int64_t row;        // of a panel, in elements
  int64_t positions;  // of a panel

  explicit Blocking(const Geometry& g) {
    constexpr int64_t kDepth = 320 * sizeof(float) / sizeof(T);
    constexpr int64_t kPanelBytes = 192 * 1024;
    constexpr int64_t kLine = 64 / sizeof(T);
    const int64_t all = std::max<int64_t>(g.taps() * g.panel_channels(), 1);
    taps = std::max<int64_t>(ceil_div(g.taps(), ceil_div(all, kDepth)), 1);
    blocks = ceil_div(g.taps(), taps);
    depth = taps * g.panel_channels();
    // An odd number of cache lines: the columns of a panel then spread over all cache sets.
    row = (ceil_div(std::max(round_up(depth, kColumns<T>), kLine), kLine) | 1) * kLine;
    const int64_t fitting = kPanelBytes / (row * static_cast<int64_t>(sizeof(T)));
    positions = round_up(std::min<int64_t>(std::max<int64_t>(fitting, 4 * kRows), 240), kRows);
  }
};

// Uninitialised memory for every thread, aligned and away from the other threads' cache lines.
template <typename T>
class Scratch {
 public:
  Scratch(const Tensor& like, int64_t slots, int64_t size)
      : size_(round_up(size, 64)), memory_(at::empty({slots * size_ + 64}, like.options())) {}
  T* slot(int64_t index) { return memory_.template mutable_data_ptr<T>() + index * size_; }

 private:
  int64_t size_;
  Tensor memory_;
};

}  // namespace
