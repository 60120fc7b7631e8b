// Depthwise convolutions with a diagonal similarity: there is no matrix product, so a panel gains
// nothing. Sums over the taps stay in registers, and one pass computes all gradients.
#pragma once

#include <vector>

#include "positions.h"

namespace {

bool needs_no_panel(const Geometry& g) { return g.depthwise() && !g.full; }

template <typename T>
class Depthwise {
 public:
  // The weights are [tap][channel], and so is their gradient.
  Depthwise(const Geometry& g, const T* weight)
      : g_(g), weight_(weight), from_(g.taps()), to_(g.taps()), zeros_(g.channels, T(0)),
        nowhere_(g.channels) {}

  // y[c] = sum_k W[k, c] * (m[k, lane of c] * x[k, c]) at one position
  void forward(Patch patch, const T* similarity, const T* x, T* y) {
    for (int64_t k = 0; k < g_.taps(); ++k) {
      from_[k] = patch[k] < 0 ? zeros_.data() : x + patch[k];
    }
    for_each_part([&](auto part, int64_t c, int64_t lane) {
      sum(part, c, similarity + lane, y + c);
    });
  }

  // Adds to all gradients; those of x and of the weights may be null.
  void backward(Patch patch, const T* similarity, const T* x, const T* gy, T* gm, T* gx, T* gw) {
    for (int64_t k = 0; k < g_.taps(); ++k) {
      from_[k] = patch[k] < 0 ? zeros_.data() : x + patch[k];
      to_[k] = !gx || patch[k] < 0 ? nowhere_.data() : gx + patch[k];
    }
    for_each_part([&](auto part, int64_t c, int64_t lane) {
      reverse(part, c, similarity + lane, gy + c, gm + lane, gx != nullptr, gw ? gw + c : nullptr);
    });
  }

 private:
  // Neighbouring channels: V vectors, or a single channel if V is 0. They share a factor, or each
  // has its own (E).
  template <int V, bool E>
  struct Part {
    static constexpr int vectors = V;
    static constexpr bool each = E;
  };

  // Calls f(part, first channel, lane) for the channels in parts as large as possible.
  template <typename F>
  void for_each_part(const F& f) {
    if (g_.lanes == g_.channels) {
      for_parts<true>(0, g_.channels, 0, f);
      return;
    }
    const int64_t channels = g_.channels / g_.lanes;
    for (int64_t lane = 0; lane < g_.lanes; ++lane) {
      for_parts<false>(lane * channels, (lane + 1) * channels, lane, f);
    }
  }

  template <bool E, typename F>
  void for_parts(int64_t c, int64_t end, int64_t lane, const F& f) {
    constexpr int width = Vec<T>::size();
    const auto lane_of = [&](int64_t channel) { return E ? channel : lane; };
    for (; c + 4 * width <= end; c += 4 * width) {
      f(Part<4, E>(), c, lane_of(c));
    }
    for (; c + 2 * width <= end; c += 2 * width) {
      f(Part<2, E>(), c, lane_of(c));
    }
    for (; c + width <= end; c += width) {
      f(Part<1, E>(), c, lane_of(c));
    }
    for (; c < end; ++c) {
      f(Part<0, E>(), c, lane_of(c));
    }
  }

  template <bool E>
  static Vec<T> factor_of(const T* factors, int v) {
    return E ? Vec<T>::loadu(factors + v * Vec<T>::size()) : Vec<T>(*factors);
  }

  template <int V, bool E>
  void sum(Part<V, E>, int64_t c, const T* factors, T* y) {
    constexpr int width = Vec<T>::size();
    const T* weight = weight_ + c;
    if constexpr (V == 0) {
      T total = 0;
      for (int64_t k = 0; k < g_.taps(); ++k, factors += g_.lanes, weight += g_.channels) {
        total += *weight * (*factors * from_[k][c]);
      }
      *y = total;
    } else {
      Vec<T> totals[V];
      for (int v = 0; v < V; ++v) {
        totals[v] = Vec<T>(T(0));
      }
      for (int64_t k = 0; k < g_.taps(); ++k, factors += g_.lanes, weight += g_.channels) {
        const T* from = from_[k] + c;
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
          const Vec<T> product = factor_of<E>(factors, v) * Vec<T>::loadu(from + v * width);
          totals[v] = at::vec::fmadd(Vec<T>::loadu(weight + v * width), product, totals[v]);
        }
      }
      for (int v = 0; v < V; ++v) {
        totals[v].store(y + v * width);
      }
    }
  }

  template <int V, bool E>
  void reverse(Part<V, E>, int64_t c, const T* factors, const T* gy, T* gm, bool to_x, T* gw) {
    constexpr int width = Vec<T>::size();
    const T* weight = weight_ + c;
    const int64_t lanes = g_.lanes, channels = g_.channels;
    if constexpr (V == 0) {
      for (int64_t k = 0; k < g_.taps(); ++k, factors += lanes, gm += lanes, weight += channels) {
        const T spread = *weight * *gy, value = from_[k][c];
        *gm += spread * value;
        if (to_x) {
          to_[k][c] += *factors * spread;
        }
        if (gw) {
          gw[k * channels] += *factors * value * *gy;
        }
      }
    } else {
      Vec<T> upper[V];
      for (int v = 0; v < V; ++v) {
        upper[v] = Vec<T>::loadu(gy + v * width);
      }
      for (int64_t k = 0; k < g_.taps(); ++k, factors += lanes, gm += lanes, weight += channels) {
        const T* from = from_[k] + c;
        T* to = to_[k] + c;
        Vec<T> dots(T(0));
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
          const int64_t i = v * width;
          const Vec<T> spread = Vec<T>::loadu(weight + i) * upper[v];
          const Vec<T> factor = factor_of<E>(factors, v), value = Vec<T>::loadu(from + i);
          if constexpr (E) {
            at::vec::fmadd(spread, value, Vec<T>::loadu(gm + i)).store(gm + i);
          } else {
            dots = at::vec::fmadd(spread, value, dots);
          }
          if (to_x) {
            at::vec::fmadd(factor, spread, Vec<T>::loadu(to + i)).store(to + i);
          }
          if (gw) {
            T* place = gw + k * channels + i;
            at::vec::fmadd(factor * value, upper[v], Vec<T>::loadu(place)).store(place);
          }
        }
        if constexpr (!E) {
          *gm += sum_of(dots);
        }
      }
    }
  }

  const Geometry& g_;
  const T* weight_;
  std::vector<const T*> from_;  // the channels under every tap
  std::vector<T*> to_;          // and where their gradients are added
  std::vector<T> zeros_;        // the padding. Zeros are multiplied: 0 * NaN is NaN
  std::vector<T> nowhere_;      // the gradient of the padding
};

}  // namespace
