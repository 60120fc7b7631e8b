// The gradient of the input with one similarity per image: a convolution of the output's gradient
// with the flipped kernels of each image.
#pragma once

#include <vector>

#include "image_forward.h"

namespace {

// The convolution that turns the output's gradient into the input's, if it is one.
Geometry turned_geometry(const Geometry& g) {
  Geometry turned = g;
  std::swap(turned.channels, turned.outputs);
  std::swap(turned.height, turned.out_h);
  std::swap(turned.width, turned.out_w);
  turned.pad_h = (g.kernel_h - 1) * g.dilation_h - g.pad_h;
  turned.pad_w = (g.kernel_w - 1) * g.dilation_w - g.pad_w;
  return turned;
}

bool can_turn(const Geometry& g) {
  const Geometry turned = turned_geometry(g);
  return g.stride_h == 1 && g.stride_w == 1 && turned.pad_h >= 0 && turned.pad_w >= 0;
}

// The kernels of an image, flipped: its taps in reverse, outputs and channels exchanged.
template <typename T>
struct TurnedKernels {
  const Geometry& g;  // of the turned convolution
  const PackedWeight<T>& weight;
  const SimilarityView<T>& view;
  std::vector<int64_t> lane_of;  // of every channel

  TurnedKernels(const Geometry& g, const PackedWeight<T>& weight, const SimilarityView<T>& view)
      : g(g), weight(weight), view(view) {
    for (int64_t c = 0; c < g.outputs; ++c) {
      lane_of.push_back(c * g.lanes / g.outputs);
    }
  }

  void operator()(int64_t n, int64_t group, int64_t tile, Range some, T* to) const {
    const T* from = weight.outputs(group, tile, 0);
    const T* factors = view.image(g, n);
    const int64_t taps = g.taps(), row = g.group_channels() * kColumns<T>;
    if (g.full) {
      for (int64_t i = 0; i < row; i += kColumns<T>) {
        product({factors + taps * taps - 1 - some.begin, -1, -taps}, some.end - some.begin,
                from + i, row, taps, to + i, row, kColumns<T>, false);
      }
      return;
    }
    const int64_t first = group * g.group_outputs() + tile * kColumns<T>;
    const int64_t last = std::min(first + kColumns<T>, (group + 1) * g.group_outputs());
    constexpr int width = Vec<T>::size();
    from += some.begin * row;
    for (int64_t k = taps - 1 - some.begin; k > taps - 1 - some.end; --k) {
      T scale[kColumns<T>] = {};
      for (int64_t c = first; c < last; ++c) {
        scale[c - first] = factors[k * g.lanes + lane_of[c]];
      }
      const Vec<T> left = Vec<T>::loadu(scale), right = Vec<T>::loadu(scale + width);
      for (int64_t i = 0; i < row; i += kColumns<T>, from += kColumns<T>, to += kColumns<T>) {
        (left * Vec<T>::loadu(from)).store(to);
        (right * Vec<T>::loadu(from + width)).store(to + width);
      }
    }
  }
};

template <typename T>
void turned_gradient(const Geometry& g, const Tensor& grad_output, const Tensor& weight,
                     const SimilarityView<T>& view, Tensor& gx) {
  const Geometry turned = turned_geometry(g);
  const Tensor weights =
      weight.view({g.groups, g.group_outputs(), g.group_channels(), g.taps()})
          .flip({3})
          .transpose(1, 2)
          .reshape({g.channels, g.group_outputs(), g.kernel_h, g.kernel_w})
          .contiguous();
  const PackedWeight<T> packed(turned, weights);
  convolve_images<T>(turned, grad_output, TurnedKernels<T>(turned, packed, view), true, gx);
}

}  // namespace
