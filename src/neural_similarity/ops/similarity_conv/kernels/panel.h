// Panels: the weighted patches of some positions, and the elementwise work on them.
#pragma once

#include <type_traits>
#include <vector>

#include "positions.h"

namespace {

template <typename Size, int64_t value>
constexpr bool is_constant = std::is_same_v<Size, std::integral_constant<int64_t, value>>;

// Which gradients a backward pass has to compute.
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
    if (g_.factored) {
      with_size(channels_, [&](auto channels) {
        for (int64_t i = 0; i < positions.count(); ++i) {
          weigh_factored(positions.patch(i), positions.similarity(i), x, row(i), group, first,
                         last, channels);
        }
      });
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
  // input; then, if the gradient of the weight is needed, the weighted patches in its place.
  void reverse(Positions<T>& positions, int64_t begin, int64_t end, const T* x, T* gx,
               Wanted wanted, int64_t group, int64_t first, int64_t last) {
    if (g_.full) {
      for (int64_t i = begin; i < end; ++i) {
        reverse_full(positions, i, x, gx, wanted, first, last);
      }
      return;
    }
    if (g_.factored) {
      with_size(channels_, [&](auto channels) {
        for (int64_t i = begin; i < end; ++i) {
          reverse_factored(positions, i, x, gx, wanted, group, first, last, channels);
        }
      });
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
  // Calls f with the number of channels of a lane, as a constant for images and for short loops; 1
  // means that there is a factor for every channel.
  template <typename F>
  void with_channels(const F& f) {
    const int64_t channels = g_.lane_channels();
    if (channels == 1 && g_.lanes > 1) {
      f(std::integral_constant<int64_t, 1>());
    } else {
      with_size(channels, f);
    }
  }

  // Calls f with a number of channels, as a constant if it is a usual one.
  template <typename F>
  static void with_size(int64_t channels, const F& f) {
    if (channels == 3) {
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

  // Whether a fourth element may be read after three channels: not after the last pixel.
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

  // The factors of a position: one per tap, or none, then one per channel.
  T of_tap(const T* factors, int64_t k) const { return g_.tap_factors ? factors[k] : T(1); }
  const T* of_channels(const T* factors, int64_t group) const {
    return factors + g_.tap_factors + group * channels_;
  }

  template <typename Size>
  void weigh_factored(Patch patch, const T* factors, const T* x, T* to, int64_t group,
                      int64_t first, int64_t last, Size channels) const {
    if constexpr (is_constant<Size, 3>) {
      if (has_fourth(patch)) {
        const T* own = of_channels(factors, group);
        const Three<T> image{own[0], own[1], own[2], T(0)};
        for (int64_t k = first; k < last; ++k, to += 3) {
          scaled_three(to, of_tap(factors, k) * image, under(patch[k], x));
        }
        return;
      }
    }
    for (int64_t k = first; k < last; ++k, to += channels) {
      scaled_channels(to, of_tap(factors, k), of_channels(factors, group),
                      under(patch[k], x), channels);
    }
  }

  template <typename Size>
  void reverse_factored(Positions<T>& positions, int64_t i, const T* x, T* gx, Wanted wanted,
                        int64_t group, int64_t first, int64_t last, Size channels) {
    const Patch patch = positions.patch(i);
    const T* factors = positions.similarity(i);
    T* const gradient = positions.gradient(i);
    T* const of_group = gradient + g_.tap_factors + group * channels_;
    T* g = row(i);
    if constexpr (is_constant<Size, 3>) {
      if (!wanted.input && has_fourth(patch) && (last - first) * 3 < row_) {
        const T *own = of_channels(factors, group), *next = g;
        const Three<T> image{own[0], own[1], own[2], T(0)};
        Three<T> upper = three(next), sums{};
        for (int64_t k = first; k < last; ++k, g += 3) {
          const Three<T> following = three(next += 3);  // before a part of it is overwritten
          const T scale = of_tap(factors, k);
          const Three<T> product = upper * three(under(patch[k], x));
          sums += scale * product;
          if (g_.tap_factors) {
            gradient[k] += product[0] * own[0] + product[1] * own[1] + product[2] * own[2];
          }
          if (wanted.weight) {
            scaled_three(g, scale * image, under(patch[k], x));
          }
          upper = following;
        }
        for (int64_t c = 0; c < 3; ++c) {
          of_group[c] += sums[c];
        }
        return;
      }
    }
    for (int64_t k = first; k < last; ++k, g += channels) {
      const T sum = reverse_factors(g, of_tap(factors, k),
                                    of_channels(factors, group), under(patch[k], x),
                                    wanted.input && patch[k] >= 0 ? gx + patch[k] : nullptr,
                                    of_group, wanted.weight, channels);
      if (g_.tap_factors) {
        gradient[k] += sum;
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
