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
    const int64_t own = !g.per_image() ? 0 : g.shared ? 1 : g.batch;
    images.resize(own * g.factors());
    for (int64_t n = 0; n < own; ++n) {
      for (int64_t f = 0; f < g.factors(); ++f) {
        images[n * g.factors() + f] = data[n * sample + factor[f]];
      }
    }
  }

  // The factors of one image, if it has one similarity.
  const T* image(const Geometry& g, int64_t n) const {
    return &images[(g.shared ? 0 : n) * g.factors()];
  }
};

// A patch in the input: where its taps lie, -1 for those in the padding.
struct Patch {
  int64_t base;
  const int64_t* taps;  // relative to the base

  int64_t operator[](int64_t k) const { return taps[k] < 0 ? -1 : base + taps[k]; }
};

// Which taps of a patch are inside the image depends on its row and on its column. Neighbouring
// rows, or columns, where the same ones are inside form a class, with one list for each pair.
class PatchTaps {
 public:
  explicit PatchTaps(const Geometry& g)
      : taps_(g.taps()),
        rows_(classes(g.out_h, g.kernel_h, g.stride_h, g.pad_h, g.dilation_h, g.height)),
        columns_(classes(g.out_w, g.kernel_w, g.stride_w, g.pad_w, g.dilation_w, g.width)) {
    for (const auto& row : rows_.inside) {
      for (const auto& column : columns_.inside) {
        for (int64_t k = 0; k < taps_; ++k) {
          const int64_t i = k / g.kernel_w, j = k % g.kernel_w;
          const int64_t offset = (i * g.dilation_h * g.width + j * g.dilation_w) * g.channels;
          offsets_.push_back(row[i] && column[j] ? offset : -1);
        }
      }
    }
  }

  const int64_t* at(int64_t p, int64_t q) const {
    const int64_t columns = static_cast<int64_t>(columns_.inside.size());
    return &offsets_[(rows_.of[p] * columns + columns_.of[q]) * taps_];
  }

 private:
  struct Classes {
    std::vector<int64_t> of;                // the class of every position
    std::vector<std::vector<bool>> inside;  // the taps that are inside, class by class
  };

  static Classes classes(int64_t positions, int64_t kernel, int64_t stride, int64_t pad,
                         int64_t dilation, int64_t size) {
    Classes all;
    std::vector<bool> inside(kernel);
    for (int64_t p = 0; p < positions; ++p) {
      for (int64_t i = 0; i < kernel; ++i) {
        const int64_t place = p * stride - pad + i * dilation;
        inside[i] = place >= 0 && place < size;
      }
      if (p == 0 || inside != all.inside.back()) {
        all.inside.push_back(inside);
      }
      all.of.push_back(static_cast<int64_t>(all.inside.size()) - 1);
    }
    return all;
  }

  int64_t taps_;
  Classes rows_, columns_;
  std::vector<int64_t> offsets_;
};

// The positions of one panel: where their patches lie, and their similarity, position by position.
template <typename T>
class Positions {
 public:
  // The gradient of the similarity goes to `gradient`, if there is one.
  Positions(const Geometry& g, const SimilarityView<T>& view, int64_t capacity,
            T* gradient = nullptr)
      : g_(g), view_(view), to_(gradient), taps_(g), patch_(capacity), place_(capacity),
        source_(capacity),
        similarity_(g.per_image() || g.in_place() ? 0 : capacity * g.factors()),
        similarity_at_(capacity), gradient_(writes_in_place() ? 0 : capacity * g.factors()),
        gradient_at_(capacity) {}

  // Take the positions [first, first + count) of the batch, counted sample by sample.
  void locate(int64_t first, int64_t count) {
    first_ = first, count_ = count, blocks_ = 0;
    int64_t n = first / g_.places(), p = first % g_.places() / g_.out_w, q = first % g_.out_w;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t top = p * g_.stride_h - g_.pad_h, left = q * g_.stride_w - g_.pad_w;
      patch_[i] = {((n * g_.height + top) * g_.width + left) * g_.channels, taps_.at(p, q)};
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
  Patch patch(int64_t i) const { return patch_[i]; }
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

  const Geometry& g_;
  const SimilarityView<T>& view_;
  T* to_;
  int64_t first_ = 0, count_ = 0;
  int64_t blocks_ = 0;  // of gradients: one per position, or one per image
  PatchTaps taps_;
  std::vector<Patch> patch_;
  std::vector<int64_t> place_, source_;
  std::vector<T> similarity_;
  std::vector<const T*> similarity_at_;
  std::vector<T> gradient_;
  std::vector<T*> gradient_at_;
};

template <typename Size, int64_t value>
constexpr bool is_constant = std::is_same_v<Size, std::integral_constant<int64_t, value>>;

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
        patch_gradient_(patch_ + g.taps() * patch_row_), padding_(g.panel_channels() + 1, T(0)),
        last_base_((g.batch * g.height * g.width - (g.kernel_h - 1) * g.dilation_h * g.width -
                    (g.kernel_w - 1) * g.dilation_w - 1) *
                   g.channels) {}

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
    } else if (channels == 8) {
      f(std::integral_constant<int64_t, 8>());
    } else if (channels == 16) {
      f(std::integral_constant<int64_t, 16>());
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

  // Whether a fourth element may be read behind three channels: not behind the last pixel.
  bool has_fourth(Patch patch) const { return g_.channels == 3 && patch.base < last_base_; }

  template <typename Size>
  void weigh(Patch patch, const T* similarity, const T* x, T* to, int64_t first,
             int64_t last, Size channels) const {
    if constexpr (is_constant<Size, 3>) {
      if (has_fourth(patch)) {
        for (int64_t k = first; k < last; ++k, to += 3) {
          scaled_three(to, similarity[k], under(patch[k], x));
        }
        return;
      }
    }
    for (int64_t k = first; k < last; ++k) {
      const T* from = under(patch[k], x);
      const T* factors = similarity + k * g_.lanes;
      if constexpr (is_constant<Size, 1>) {
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
    const Patch patch = positions.patch(i);
    T* g = row(i);
    if constexpr (is_constant<Size, 3>) {
      if (!wanted.input && has_fourth(patch) && (last - first) * 3 < row_) {
        const T *factors = positions.similarity(i), *next = g;
        Three<T> upper = three(next);
        for (int64_t k = first; k < last; ++k, g += 3) {
          const Three<T> following = three(next += 3);  // before a part of it is overwritten
          positions.gradient(i)[k] +=
              reverse_three(g, factors[k], upper, under(patch[k], x), wanted.weight);
          upper = following;
        }
        return;
      }
    }
    for (int64_t k = first; k < last; ++k) {
      const T* factors = positions.similarity(i) + k * g_.lanes + first_lane;
      T* gradient = positions.gradient(i) + k * g_.lanes + first_lane;
      const T* from = under(patch[k], x);
      T* to = wanted.input && patch[k] >= 0 ? gx + patch[k] : nullptr;
      if constexpr (is_constant<Size, 1>) {
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
  void gather(Patch patch, const T* x) {
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
    const Patch patch = positions.patch(i);
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
  int64_t last_base_;  // of a patch in the input, in the order of memory
};

}  // namespace
