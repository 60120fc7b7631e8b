// Weights in the two orders that the products need.
#pragma once

#include <ATen/Parallel.h>

#include "geometry.h"
#include "transpose.h"

namespace {

// A weight (O, C/groups, K) in the two orders that the products need, a column tile at a time:
//   forward   [group][tile of outputs][tap][channel][output in tile]
//   backward  [group][block][tile of (tap, channel)][output][(tap, channel) in tile]
// with columns past the edge zero.  A depthwise weight is [tap][channel] in both.  For the forward
// order, it may be channels-last in memory.
template <typename T>
class PackedWeight {
 public:
  // In the backward order if there is a blocking.
  PackedWeight(const Geometry& g, const Tensor& weight, const Blocking<T>* blocking = nullptr)
      : g_(g), blocking_(blocking), channels_last_(!weight.is_contiguous()) {
    TORCH_INTERNAL_ASSERT(!channels_last_ || !(blocking || g.depthwise()));
    if (g.depthwise()) {
      memory_ = weight.view({g.channels, g.taps()}).t().contiguous();
      return;
    }
    const int64_t columns = round_up(blocking ? blocking->depth : g.group_outputs(), kColumns<T>);
    per_group_ = blocking ? blocking->blocks * columns * g.group_outputs()
                          : columns * g.taps() * g.group_channels();
    memory_ = at::empty({g.groups * per_group_}, weight.options());
    const T* from = weight.const_data_ptr<T>();
    T* to = memory_.template mutable_data_ptr<T>();
    const int64_t tiles = per_group_ * g.groups == 0 ? 0 : columns / kColumns<T>;
    if (blocking) {
      at::parallel_for(0, g.groups * blocking->blocks * tiles, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          pack_transposed(from, to, i / tiles / blocking->blocks, i / tiles % blocking->blocks,
                          i % tiles);
        }
      });
    } else {
      // Packing a few weights takes less time than waking threads.
      constexpr int64_t kFew = 32 * 1024;
      const int64_t size = std::max<int64_t>(kColumns<T> * g.taps() * g.group_channels(), 1);
      const int64_t some = std::max<int64_t>(kFew / size, 1);
      at::parallel_for(0, g.groups * tiles, some, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          pack(from, to, i / tiles, i % tiles);
        }
      });
    }
  }

  int64_t size() const { return memory_.numel(); }

  // Depthwise: one tap of all channels.
  const T* channels(int64_t tap) const { return data() + tap * g_.channels; }

  // Forward: the rows of a block of taps, for one tile of outputs.
  const T* outputs(int64_t group, int64_t tile, int64_t first_tap) const {
    return data() + group * per_group_ +
           (tile * g_.taps() + first_tap) * g_.group_channels() * kColumns<T>;
  }

  // Backward: one tile of (tap, channel) of a block.
  const T* patches(int64_t group, int64_t block, int64_t tile) const {
    const int64_t tiles = ceil_div(blocking_->depth, kColumns<T>);
    return data() + group * per_group_ +
           (block * tiles + tile) * g_.group_outputs() * kColumns<T>;
  }

 private:
  const T* data() const { return memory_.template const_data_ptr<T>(); }

  // The weights are read in the order in which they lie in memory.
  void pack(const T* from, T* to, int64_t group, int64_t tile) {
    const int64_t channels = g_.group_channels(), taps = g_.taps();
    const int64_t first = tile * kColumns<T>;
    const int64_t count = std::min(kColumns<T>, g_.group_outputs() - first);
    from += (group * g_.group_outputs() + first) * channels * taps;
    to += group * per_group_ + tile * taps * channels * kColumns<T>;
    const int64_t outer = channels_last_ ? taps : channels, inner = channels * taps / outer;
    const int64_t tap_row = channels * kColumns<T>;
    const int64_t outer_row = channels_last_ ? tap_row : kColumns<T>;
    const int64_t inner_row = channels_last_ ? kColumns<T> : tap_row;
    if (channels_last_ && count == kColumns<T>) {
      transpose(from, kColumns<T>, channels * taps, to);
      return;
    }
    for (int64_t i = 0; i < outer; ++i, to += outer_row) {
      T* row = to;
      for (int64_t j = 0; j < inner; ++j, ++from, row += inner_row) {
        for (int64_t o = 0; o < count; ++o) {
          row[o] = from[o * channels * taps];
        }
        std::fill(row + count, row + kColumns<T>, T(0));
      }
    }
  }

  void pack_transposed(const T* from, T* to, int64_t group, int64_t block, int64_t tile) {
    const int64_t channels = g_.group_channels(), taps = g_.taps(), outputs = g_.group_outputs();
    const int64_t first_tap = block * blocking_->taps;
    const int64_t depth = std::min(blocking_->taps, taps - first_tap) * channels;
    to = const_cast<T*>(patches(group, block, tile));
    from += group * outputs * channels * taps;
    for (int64_t o = 0; o < outputs; ++o, from += channels * taps, to += kColumns<T>) {
      for (int64_t i = 0; i < kColumns<T>; ++i) {
        const int64_t place = tile * kColumns<T> + i;
        to[i] = place < depth ? from[place % channels * taps + first_tap + place / channels] : T(0);
      }
    }
  }

  const Geometry& g_;
  const Blocking<T>* blocking_;
  const bool channels_last_;
  int64_t per_group_ = 0;
  Tensor memory_;
};

}  // namespace
