// A layer of a network that many episodes share, each with its own kernel: its sizes, and how its
// kernels are laid out.
#pragma once

#include <algorithm>
#include <vector>

#include "geometry.h"

namespace {

// The places in a 2 x 2 window are 0 to 3; this stands for none of them.
constexpr int64_t kNowhere = 4;

template <typename T>
using Route = at::vec::int_same_size_t<T>;

// Convolution, scale and shift, pooling (or none) and ReLU.  The input has zeros around it.
struct EpisodeLayer {
  int64_t channels, height, width, outputs, kernel_h, kernel_w, pad_h, pad_w;
  int64_t window;        // side of the pooling, 1 for none
  int64_t out_h, out_w;  // after pooling
  bool shared;           // one weight for all, and a factor per tap for every episode

  int64_t taps() const { return kernel_h * kernel_w; }
  int64_t run() const { return kernel_w * channels; }  // elements of a kernel's row
  int64_t kernel_size() const { return taps() * channels; }
  int64_t weight_size() const { return outputs * kernel_size(); }
  int64_t row() const { return (width + 2 * pad_w) * channels; }
  int64_t padded_size() const { return (height + 2 * pad_h) * row(); }
  int64_t middle() const { return pad_h * row() + pad_w * channels; }
  int64_t places() const { return out_h * out_w; }
  int64_t map_size() const { return places() * outputs; }
  // The patch of an element of the map that came from this place of its window.
  int64_t patch(int64_t p, int64_t q, int64_t place) const {
    return (p * window + place / 2) * row() + (q * window + place % 2) * channels;
  }
};

EpisodeLayer episode_layer(IntArrayRef image, const Tensor& weight, const Tensor& taps,
                           int64_t pad_h, int64_t pad_w, bool pool) {
  TORCH_CHECK(weight.dim() == 5 && taps.dim() == 2, "a weight must have 5 axes, factors 2");
  EpisodeLayer g{};
  g.channels = image[0], g.height = image[1], g.width = image[2];
  g.outputs = weight.size(1), g.kernel_h = weight.size(3), g.kernel_w = weight.size(4);
  g.pad_h = pad_h, g.pad_w = pad_w, g.window = pool ? 2 : 1, g.shared = taps.numel() > 0;
  g.out_h = (g.height + 2 * pad_h - g.kernel_h + 1) / g.window;
  g.out_w = (g.width + 2 * pad_w - g.kernel_w + 1) / g.window;
  TORCH_CHECK(weight.size(2) == g.channels && weight.numel() > 0 && g.out_h > 0 && g.out_w > 0,
              "a weight does not fit its input");
  TORCH_CHECK(!g.shared || (weight.size(0) == 1 && taps.size(1) == g.taps()),
              "factors do not fit their weight");
  return g;
}

// out[t, c, o] = weight[o, c, t] * scale[o] in tiles of columns o, padded with zeros.
template <typename T>
void pack_columns(const EpisodeLayer& g, const T* weight, const T* scale, T* out) {
  for (int64_t o = 0; o < g.outputs; o += kColumns<T>) {
    const int64_t columns = std::min(kColumns<T>, g.outputs - o);
    for (int64_t t = 0; t < g.taps(); ++t) {
      for (int64_t c = 0; c < g.channels; ++c, out += kColumns<T>) {
        for (int64_t j = 0; j < columns; ++j) {
          out[j] = weight[((o + j) * g.channels + c) * g.taps() + t] * scale[o + j];
        }
        std::fill(out + columns, out + kColumns<T>, T(0));
      }
    }
  }
}

// The columns, each times the factor of its tap.
template <typename T>
void scale_columns(const EpisodeLayer& g, const T* columns, const T* factors, T* out) {
  const int64_t block = g.channels * kColumns<T>;
  for (int64_t o = 0; o < g.outputs; o += kColumns<T>) {
    for (int64_t t = 0; t < g.taps(); ++t, columns += block, out += block) {
      scaled(out, factors[t], columns, block);
    }
  }
}

// Kernels in the order of a patch: rows of taps and channels, padded with zeros to whole
// vectors.  kSlab vectors, which fit the registers, are a slab; it has a part of every kernel.
constexpr int64_t kSlab = 12;

template <typename T>
class Slabs {
 public:
  explicit Slabs(const EpisodeLayer& g) : outputs_(g.outputs), kernel_(g.kernel_size()) {
    for (int64_t row = 0; row < g.kernel_h; ++row) {
      for (int64_t j = 0; j < g.run(); j += width) {
        offsets_.push_back(row * g.row() + j);
        for (int64_t lane = j; lane < j + width; ++lane) {
          const int64_t tap = row * g.kernel_w + lane / g.channels;
          taps_.push_back(lane < g.run() ? tap : -1);
          elements_.push_back(lane < g.run() ? lane % g.channels * g.taps() + tap : -1);
        }
      }
    }
  }

  int64_t vectors() const { return static_cast<int64_t>(offsets_.size()); }
  int64_t kernel_size() const { return vectors() * width; }
  int64_t size() const { return outputs_ * kernel_size(); }
  const int64_t* offsets() const { return offsets_.data(); }  // of vectors in a patch

  // Calls f(first vector, number of vectors) for every slab.
  template <typename F>
  void visit(const F& f) const {
    for (int64_t first = 0; first < vectors(); first += kSlab) {
      f(first, std::min(kSlab, vectors() - first));
    }
  }

  void pack(const T* weight, T* slabs) const {
    visit([&](int64_t first, int64_t count) {
      for (int64_t o = 0; o < outputs_; ++o) {
        for (int64_t i = first * width; i < (first + count) * width; ++i) {
          *slabs++ = elements_[i] < 0 ? T(0) : weight[o * kernel_ + elements_[i]];
        }
      }
    });
  }

  void unpack(const T* slabs, T* weight) const {
    visit([&](int64_t first, int64_t count) {
      for (int64_t o = 0; o < outputs_; ++o) {
        for (int64_t i = first * width; i < (first + count) * width; ++i, ++slabs) {
          if (elements_[i] >= 0) {
            weight[o * kernel_ + elements_[i]] = *slabs;
          }
        }
      }
    });
  }

  // The factor of every element of a kernel.
  void spread(const T* factors, T* kernel) const {
    for (int64_t i = 0; i < kernel_size(); ++i) {
      kernel[i] = taps_[i] < 0 ? T(0) : factors[taps_[i]];
    }
  }

  // Adds the elements of a kernel to the sums of their taps.
  void gather(const T* kernel, T* sums) const {
    for (int64_t i = 0; i < kernel_size(); ++i) {
      if (taps_[i] >= 0) {
        sums[taps_[i]] += kernel[i];
      }
    }
  }

 private:
  static constexpr int64_t width = Vec<T>::size();
  int64_t outputs_, kernel_;
  std::vector<int64_t> offsets_;
  std::vector<int64_t> taps_, elements_;  // of every lane; -1 past the end of a row
};

}  // namespace
