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
  int64_t sample, row, column;  // strides, 0 where one entry serves all
  std::vector<int64_t> factor;  // offset of every factor of a position: [tap][tap or lane]
  std::vector<T> images;        // with one similarity per image: its factors, image by image

  SimilarityView(const Geometry& g, const Tensor& similarity)
      : data(similarity.const_data_ptr<T>()),
        sample(g.shared ? 0 : similarity.stride(0)),
        row(g.factor_h == 1 ? 0 : similarity.stride(-2)),
        column(g.factor_w == 1 ? 0 : similarity.stride(-1)) {
    for (int64_t i = 0; i < g.taps(); ++i) {
      for (int64_t j = 0; j < g.factors() / g.taps(); ++j) {
        factor.push_back(g.full ? i * similarity.stride(1) + j * similarity.stride(2)
                                : (j * g.similarity_groups / g.lanes * g.taps() + i) *
                                      similarity.stride(1));
      }
    }
    for (int64_t n = 0; g.per_image() && n < (g.shared ? 1 : g.batch); ++n) {
      for (const int64_t offset : factor) {
        images.push_back(data[n * sample + offset]);
      }
    }
  }

  // The factors of one image, if it has one similarity.
  const T* image(const Geometry& g, int64_t n) const {
    return &images[(g.shared ? 0 : n) * g.factors()];
  }
};

// The positions of one panel: where their patches lie, and their similarity, position by position.
template <typename T>
class Positions {
 public:
  // The gradient of the similarity goes to `gradient`, if there is one.
  Positions(const Geometry& g, const SimilarityView<T>& view, int64_t capacity,
            T* gradient = nullptr)
      : g_(g), view_(view), to_(gradient), patch_(capacity * g.taps()), place_(capacity),
        source_(capacity),
        similarity_(g.per_image() || g.in_place() ? 0 : capacity * g.factors()),
        similarity_at_(capacity), gradient_(writes_in_place() ? 0 : capacity * g.factors()),
        gradient_at_(capacity) {
    for (int64_t k = 0; k < g.taps(); ++k) {
      tap_.push_back((k / g.kernel_w * g.dilation_h * g.width + k % g.kernel_w * g.dilation_w) *
                     g.channels);
    }
  }

  // Take the positions [first, first + count) of the batch, counted sample by sample.
  void locate(int64_t first, int64_t count) {
    first_ = first, count_ = count, blocks_ = 0;
    int64_t n = first / g_.places(), p = first % g_.places() / g_.out_w, q = first % g_.out_w;
    for (int64_t i = 0; i < count; ++i) {
      locate_patch(&patch_[i * g_.taps()], n, p, q);
      if (!g_.in_place()) {
        locate_similarity(i, n, p, q);
      }
      if (++q == g_.out_w) {
        q = 0;
        if (++p == g_.out_h) {
          p = 0, ++n;
        }
      }
    }
    const int64_t factors = g_.factors();
    if (g_.in_place()) {
      for (int64_t i = 0; i < count; ++i) {
        similarity_at_[i] = view_.data + (first + i) * factors;
        gradient_at_[i] = to_ ? to_ + (first + i) * factors : &gradient_[i * factors];
      }
      return;
    }
    // Factor by factor, since that is how a similarity usually lies in memory.
    for (int64_t f = 0; !g_.per_image() && f < factors; ++f) {
      const T* from = view_.data + view_.factor[f];
      for (int64_t i = 0; i < count; ++i) {
        similarity_[i * factors + f] = from[source_[i]];
      }
    }
  }

  void clear_gradient() {
    if (writes_in_place()) {
      std::fill_n(to_ + first_ * g_.factors(), count_ * g_.factors(), T(0));
    } else {
      std::fill_n(gradient_.begin(), blocks_ * g_.factors(), T(0));
    }
  }

  // Put the gradient of the similarity where it belongs; one that serves many collects it.
  void store_gradient() const {
    if (!to_ || g_.in_place()) {
      return;
    }
    const int64_t factors = g_.factors();
    const int64_t step = last() ? 1 : g_.factor_h * g_.factor_w;
    const bool repeats = !g_.full && g_.lanes > g_.similarity_groups;
    for (int64_t f = 0; f < factors; ++f) {
      const int64_t tap = f / (factors / g_.taps()), j = f % (factors / g_.taps());
      const int64_t entry =
          g_.full ? f : j * g_.similarity_groups / g_.lanes * g_.taps() + tap;
      const bool add = g_.collects() || (repeats && j % (g_.lanes / g_.similarity_groups) > 0);
      for (int64_t i = 0; i < blocks_; ++i) {
        T& place = to_[place_[i] + entry * step];
        place = gradient_[i * factors + f] + (add ? place : T(0));
      }
    }
  }

  int64_t count() const { return count_; }
  // Offsets of the taps of a position in the input, -1 for those in the padding.
  const int64_t* patch(int64_t i) const { return &patch_[i * g_.taps()]; }
  const T* similarity(int64_t i) const { return similarity_at_[i]; }
  T* gradient(int64_t i) { return gradient_at_[i]; }

 private:
  bool writes_in_place() const { return to_ && g_.in_place(); }

  // What is collected has the order of a contiguous similarity, whatever the similarity's is.
  bool last() const { return g_.taps_last && !g_.collects(); }

  void locate_similarity(int64_t i, int64_t n, int64_t p, int64_t q) {
    // Positions with the same similarity share a block of gradients.
    if (i == 0 || !g_.per_image() || (p == 0 && q == 0)) {
      source_[blocks_] = n * view_.sample + p * view_.row + q * view_.column;
      const int64_t row = g_.factor_h == 1 ? 0 : p, column = g_.factor_w == 1 ? 0 : q;
      const int64_t sample = g_.shared ? 0 : n * g_.entries();
      place_[blocks_] = last() ? sample * g_.places() + (row * g_.out_w + column) * g_.entries()
                               : (sample * g_.factor_h + row) * g_.factor_w + column;
      ++blocks_;
    }
    similarity_at_[i] = g_.per_image() ? view_.image(g_, n) : &similarity_[i * g_.factors()];
    gradient_at_[i] = &gradient_[(blocks_ - 1) * g_.factors()];
  }

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
  T* to_;
  int64_t first_ = 0, count_ = 0;
  int64_t blocks_ = 0;  // of gradients: one per position, or one per image
  std::vector<int64_t> tap_, patch_, place_, source_;
  std::vector<T> similarity_;
  std::vector<const T*> similarity_at_;
  std::vector<T> gradient_;
  std::vector<T*> gradient_at_;
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
        lanes_(g.panel_lanes()),
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
  void fill(const Positions<T>& positions, const T* x, int64_t group, int64_t first,
            int64_t last) {
    if (g_.full) {
      for (int64_t i = 0; i < positions.count(); ++i) {
        gather(positions.patch(i), x);
        mix(positions.similarity(i), row(i), first, last);
      }
      return;
    }
    const int64_t lane = g_.first_lane(group);
    with_channels([&](auto channels) {
      for (int64_t i = 0; i < positions.count(); ++i) {
        weigh(positions.patch(i), positions.similarity(i) + lane, x, row(i), first, last, channels);
      }
    });
  }

  // From the gradient of the weighted patches, in the panel: the gradients of similarity and
  // input; then, if the gradient of the weight is wanted, the weighted patches in its place.
  void reverse(Positions<T>& positions, int64_t begin, int64_t end, const T* x, T* gx,
               Wanted wanted, int64_t group, int64_t first, int64_t last) {
    if (g_.full) {
      for (int64_t i = begin; i < end; ++i) {
        reverse_full(positions, i, x, gx, wanted, first, last);
      }
      return;
    }
    const int64_t lane = g_.first_lane(group);
    with_channels([&](auto channels) {
      for (int64_t i = begin; i < end; ++i) {
        reverse_diagonal(positions, i, x, gx, wanted, lane, first, last, channels);
      }
    });
  }

 private:
  // Calls f with the channels of a lane. Those of an image, and where loops are short, are a
  // constant; 1 means that the factors lie channel by channel.
  template <typename F>
  void with_channels(const F& f) {
    const int64_t channels = g_.lane_channels();
    if (channels == 1 && g_.lanes > 1) {
      f(std::integral_constant<int64_t, 1>());
    } else if (channels == 3) {
      f(std::integral_constant<int64_t, 3>());
    } else if (channels == 32) {
      f(std::integral_constant<int64_t, 32>());
    } else if (channels == 64) {
      f(std::integral_constant<int64_t, 64>());
    } else {
      f(channels);
    }
  }

  // The channels under one tap. In the padding they are zeros that are multiplied like any others:
  // 0 * NaN is NaN, as in the reference.
  const T* under(int64_t tap, const T* x) const { return tap < 0 ? padding_.data() : x + tap; }

  template <typename Size>
  void weigh(const int64_t* patch, const T* similarity, const T* x, T* to, int64_t first,
             int64_t last, Size channels) const {
    for (int64_t k = first; k < last; ++k) {
      const T* from = under(patch[k], x);
      const T* factors = similarity + k * g_.lanes;
      if constexpr (std::is_same_v<Size, std::integral_constant<int64_t, 1>>) {
        multiply(to, factors, from, channels_, false);
        to += channels_;
      } else {
        for (int64_t lane = 0; lane < lanes_; ++lane, to += channels, from += channels) {
          scaled(to, factors[lane], from, channels);
        }
      }
    }
  }

  template <typename Size>
  void reverse_diagonal(Positions<T>& positions, int64_t i, const T* x, T* gx, Wanted wanted,
                        int64_t first_lane, int64_t first, int64_t last, Size channels) {
    const int64_t* patch = positions.patch(i);
    T* g = row(i);
    for (int64_t k = first; k < last; ++k) {
      const T* factors = positions.similarity(i) + k * g_.lanes + first_lane;
      T* gradient = positions.gradient(i) + k * g_.lanes + first_lane;
      const T* from = under(patch[k], x);
      T* to = wanted.input && patch[k] >= 0 ? gx + patch[k] : nullptr;
      if constexpr (std::is_same_v<Size, std::integral_constant<int64_t, 1>>) {
        reverse_channels(g, factors, from, to, gradient, wanted.weight, channels_);
        g += channels_;
      } else {
        for (int64_t lane = 0; lane < lanes_; ++lane, g += channels, from += channels) {
          gradient[lane] += reverse_tap(g, factors[lane], from, to, wanted.weight, channels);
          to = to ? to + channels : nullptr;
        }
      }
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
  int64_t channels_, lanes_, patch_row_;
  T* patch_;
  T* patch_gradient_;
  std::vector<T> padding_;
};

}  // namespace
