// Panels: the weighted patches of some positions, and the elementwise work on them.
#pragma once

#include <type_traits>
#include <vector>

#include "geometry.h"

namespace {

// A similarity as it lies in memory: any strides, so that the caller never copies it.
template <typename T>
struct SimilarityView {
  const T* data;
  int64_t sample, row, column;
  std::vector<int64_t> factor;  // offset of every factor of a position

  SimilarityView(const Geometry& g, const Tensor& similarity)
      : data(similarity.const_data_ptr<T>()),
        sample(g.shared ? 0 : similarity.stride(0)),
        row(similarity.stride(-2)),
        column(similarity.stride(-1)) {
    for (int64_t i = 0; i < g.taps(); ++i) {
      for (int64_t j = 0; j < (g.full ? g.taps() : 1); ++j) {
        factor.push_back(i * similarity.stride(1) + (g.full ? j * similarity.stride(2) : 0));
      }
    }
  }
};

// The positions of one panel: where their patches lie, and their similarity, position by position.
template <typename T>
class Positions {
 public:
  Positions(const Geometry& g, const SimilarityView<T>& view, int64_t capacity)
      : g_(g), view_(view), patch_(capacity * g.taps()), place_(capacity), source_(capacity),
        similarity_(capacity * g.factors()), gradient_(capacity * g.factors()) {
    for (int64_t k = 0; k < g.taps(); ++k) {
      tap_.push_back((k / g.kernel_w * g.dilation_h * g.width + k % g.kernel_w * g.dilation_w) *
                     g.channels);
    }
  }

  // Take the positions [first, first + count) of the batch, counted sample by sample.
  void locate(int64_t first, int64_t count) {
    count_ = count;
    int64_t n = first / g_.places(), p = first % g_.places() / g_.out_w, q = first % g_.out_w;
    for (int64_t i = 0; i < count; ++i) {
      locate_patch(&patch_[i * g_.taps()], n, p, q);
      source_[i] = n * view_.sample + p * view_.row + q * view_.column;
      place_[i] = (g_.shared ? 0 : n * g_.factors() * g_.places()) + p * g_.out_w + q;
      if (++q == g_.out_w) {
        q = 0;
        if (++p == g_.out_h) {
          p = 0, ++n;
        }
      }
    }
    // Factor by factor, since that is how a similarity usually lies in memory.
    const int64_t factors = g_.factors();
    for (int64_t f = 0; f < factors; ++f) {
      const T* from = view_.data + view_.factor[f];
      for (int64_t i = 0; i < count; ++i) {
        similarity_[i * factors + f] = from[source_[i]];
      }
    }
  }

  void clear_gradient() {
    std::fill_n(gradient_.begin(), count_ * g_.factors(), T(0));
  }

  // Put the gradient of the similarity where it belongs; a shared one collects it.
  void store_gradient(T* to) const {
    const int64_t factors = g_.factors();
    for (int64_t f = 0; f < factors; ++f, to += g_.places()) {
      for (int64_t i = 0; i < count_; ++i) {
        const T value = gradient_[i * factors + f];
        to[place_[i]] = g_.shared ? to[place_[i]] + value : value;
      }
    }
  }

  int64_t count() const { return count_; }
  // Offsets of the taps of a position in the input, -1 for those in the padding.
  const int64_t* patch(int64_t i) const { return &patch_[i * g_.taps()]; }
  const T* similarity(int64_t i) const { return &similarity_[i * g_.factors()]; }
  T* gradient(int64_t i) { return &gradient_[i * g_.factors()]; }

 private:
  void locate_patch(int64_t* patch, int64_t n, int64_t p, int64_t q) const {
    const int64_t top = p * g_.stride_h - g_.pad_h, left = q * g_.stride_w - g_.pad_w;
    const int64_t base = ((n * g_.height + top) * g_.width + left) * g_.channels;
    const bool inside = top >= 0 && left >= 0 &&
        top + (g_.kernel_h - 1) * g_.dilation_h < g_.height &&
        left + (g_.kernel_w - 1) * g_.dilation_w < g_.width;
    for (int64_t k = 0; k < g_.taps(); ++k) {
      patch[k] = base + tap_[k];
    }
    if (inside) {
      return;
    }
    for (int64_t k = 0; k < g_.taps(); ++k) {
      const int64_t row = top + k / g_.kernel_w * g_.dilation_h;
      const int64_t column = left + k % g_.kernel_w * g_.dilation_w;
      if (row < 0 || row >= g_.height || column < 0 || column >= g_.width) {
        patch[k] = -1;
      }
    }
  }

  const Geometry& g_;
  const SimilarityView<T>& view_;
  int64_t count_ = 0;
  std::vector<int64_t> tap_, patch_, place_, source_;
  std::vector<T> similarity_, gradient_;
};

// Which gradients a backward pass is to find.
struct Wanted {
  bool input, weight, similarity;
};

// The elementwise work of a panel, for one group and one block of taps [first, last).
template <typename T>
class Panel {
 public:
  Panel(const Geometry& g, const Blocking<T>& blocking, T* memory)
      : g_(g), row_(blocking.row), memory_(memory), channels_(g.panel_channels()),
        patch_row_(round_up(g.panel_channels(), kColumns<T>)),
        patch_(memory + blocking.positions * blocking.row + kColumns<T>),
        patch_gradient_(patch_ + g.taps() * patch_row_), padding_(g.panel_channels(), T(0)) {}

  // Elements a panel needs; rows of a block are read past their end by up to a column tile.
  static int64_t size(const Geometry& g, const Blocking<T>& blocking) {
    const int64_t patches = g.full ? 2 * g.taps() * round_up(g.panel_channels(), kColumns<T>) : 0;
    return blocking.positions * blocking.row + kColumns<T> + patches;
  }

  T* row(int64_t i) { return memory_ + i * row_; }
  int64_t row_size() const { return row_; }

  // The weighted patches.
  void fill(const Positions<T>& positions, const T* x, int64_t first, int64_t last) {
    if (g_.full) {
      for (int64_t i = 0; i < positions.count(); ++i) {
        gather(positions.patch(i), x);
        mix(positions.similarity(i), row(i), first, last);
      }
      return;
    }
    with_channels([&](auto channels) {
      for (int64_t i = 0; i < positions.count(); ++i) {
        weigh(positions.patch(i), positions.similarity(i), x, row(i), first, last, channels);
      }
    });
  }

  // From the gradient of the weighted patches, in the panel: the gradients of similarity and
  // input; then, if the gradient of the weight is wanted, the weighted patches in its place.
  void reverse(Positions<T>& positions, const T* x, T* gx, Wanted wanted, int64_t first,
               int64_t last) {
    if (g_.full) {
      for (int64_t i = 0; i < positions.count(); ++i) {
        reverse_full(positions, i, x, gx, wanted, first, last);
      }
      return;
    }
    with_channels([&](auto channels) {
      for (int64_t i = 0; i < positions.count(); ++i) {
        reverse_diagonal(positions, i, x, gx, wanted, first, last, channels);
      }
    });
  }

 private:
  template <typename F>
  void with_channels(const F& f) {
    if (channels_ == 3) {
      f(std::integral_constant<int64_t, 3>());
    } else {
      f(channels_);
    }
  }

  // The channels under one tap. In the padding they are zeros that are multiplied like any others:
  // 0 * NaN is NaN, as in the reference.
  const T* under(int64_t tap, const T* x) const { return tap < 0 ? padding_.data() : x + tap; }

  template <typename Size>
  void weigh(const int64_t* patch, const T* similarity, const T* x, T* to, int64_t first,
             int64_t last, Size channels) const {
    for (int64_t k = first; k < last; ++k, to += channels) {
      scaled(to, similarity[k], under(patch[k], x), channels);
    }
  }

  template <typename Size>
  void reverse_diagonal(Positions<T>& positions, int64_t i, const T* x, T* gx, Wanted wanted,
                        int64_t first, int64_t last, Size channels) {
    const int64_t* patch = positions.patch(i);
    const T* similarity = positions.similarity(i);
    T* gradient = positions.gradient(i);
    T* g = row(i);
    for (int64_t k = first; k < last; ++k, g += channels) {
      T* to = wanted.input && patch[k] >= 0 ? gx + patch[k] : nullptr;
      gradient[k] +=
          reverse_tap(g, similarity[k], under(patch[k], x), to, wanted.weight, channels);
    }
  }

  // The taps of a patch next to each other, zeros for those in the padding.
  void gather(const int64_t* patch, const T* x) {
    for (int64_t j = 0; j < g_.taps(); ++j) {
      T* to = patch_ + j * patch_row_;
      if (patch[j] < 0) {
        std::fill_n(to, channels_, T(0));
      } else {
        std::copy_n(x + patch[j], channels_, to);
      }
    }
  }

  // to[i, c] = sum_j M[i, j] patch[j, c] for the taps i of the block
  void mix(const T* similarity, T* to, int64_t first, int64_t last) {
    const Left<T> rows{similarity + first * g_.taps(), g_.taps(), 1};
    for (int64_t c = 0; c < channels_; c += kColumns<T>) {
      product(rows, last - first, patch_ + c, patch_row_, g_.taps(), to + c, channels_,
              std::min(kColumns<T>, channels_ - c), false);
    }
  }

  void reverse_full(Positions<T>& positions, int64_t i, const T* x, T* gx, Wanted wanted,
                    int64_t first, int64_t last) {
    const int64_t taps = g_.taps();
    const int64_t* patch = positions.patch(i);
    const T* similarity = positions.similarity(i);
    T* g = row(i);
    if (wanted.similarity || wanted.weight) {
      gather(patch, x);
    }
    if (wanted.similarity) {
      add_similarity_gradient(positions.gradient(i) + first * taps, g, last - first);
    }
    if (wanted.input) {
      const Left<T> columns{similarity + first * taps, 1, taps};
      for (int64_t c = 0; c < channels_; c += kColumns<T>) {
        product(columns, taps, g + c, channels_, last - first, patch_gradient_ + c, patch_row_,
                std::min(kColumns<T>, channels_ - c), false);
      }
      for (int64_t j = 0; j < taps; ++j) {
        if (patch[j] >= 0) {
          add(gx + patch[j], patch_gradient_ + j * patch_row_, channels_);
        }
      }
    }
    if (wanted.weight) {
      mix(similarity, g, first, last);
    }
  }

  // gradient[i, j] += sum_c g[i, c] patch[j, c] for `count` taps i and all taps j
  void add_similarity_gradient(T* gradient, const T* g, int64_t count) {
    const int64_t taps = g_.taps();
    const auto add_some = [&](auto rows, auto columns, int64_t i, int64_t j) {
      add_dots<T, rows, columns>(gradient + i * taps + j, taps, g + i * channels_, channels_,
                                 patch_ + j * patch_row_, patch_row_, channels_);
    };
    const std::integral_constant<int, 1> one;
    const std::integral_constant<int, 3> three;
    int64_t i = 0;
    for (; i + 3 <= count; i += 3) {
      int64_t j = 0;
      for (; j + 3 <= taps; j += 3) {
        add_some(three, three, i, j);
      }
      for (; j < taps; ++j) {
        add_some(three, one, i, j);
      }
    }
    for (; i < count; ++i) {
      int64_t j = 0;
      for (; j + 3 <= taps; j += 3) {
        add_some(one, three, i, j);
      }
      for (; j < taps; ++j) {
        add_some(one, one, i, j);
      }
    }
  }

  const Geometry& g_;
  int64_t row_;
  T* memory_;
  int64_t channels_, patch_row_;
  T* patch_;
  T* patch_gradient_;
  std::vector<T> padding_;
};

}  // namespace
