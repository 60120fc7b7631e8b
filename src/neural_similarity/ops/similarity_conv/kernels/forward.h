// The forward pass.
#pragma once

#include <ATen/Parallel.h>

#include "panel.h"
#include "weights.h"

namespace {

struct Range {
  int64_t begin, end;
};

// The part of [0, total) of one of `slots` workers, cut at multiples of `unit`.
Range share(int64_t total, int64_t slots, int64_t slot, int64_t unit) {
  const int64_t units = ceil_div(total, unit);
  return {std::min(total, units * slot / slots * unit),
          std::min(total, units * (slot + 1) / slots * unit)};
}

// y (+)= panel * weight for one group and the block of taps [first, last)
template <typename T>
void forward_block(const Geometry& g, const PackedWeight<T>& weight, Panel<T>& panel, int64_t count,
                   T* y, int64_t group, int64_t first, int64_t last) {
  if (g.depthwise()) {
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t k = first; k < last; ++k) {
        multiply(y + i * g.outputs, weight.channels(k), panel.row(i) + (k - first) * g.channels,
                 g.channels, k > 0);
      }
    }
    return;
  }
  const int64_t outputs = g.group_outputs(), depth = (last - first) * g.group_channels();
  for (int64_t o = 0; o < outputs; o += kColumns<T>) {
    product({panel.row(0), panel.row_size(), 1}, count,
            weight.outputs(group, o / kColumns<T>, first), kColumns<T>, depth, y + o, g.outputs,
            std::min(kColumns<T>, outputs - o), first > 0);
  }
}

template <typename T>
void forward_range(const Geometry& g, const Blocking<T>& blocking, const PackedWeight<T>& weight,
                   const SimilarityView<T>& similarity, const T* x, T* y, Range range, T* memory) {
  Positions<T> positions(g, similarity, blocking.positions);
  Panel<T> panel(g, blocking, memory);
  for (int64_t start = range.begin; start < range.end; start += blocking.positions) {
    positions.locate(start, std::min(blocking.positions, range.end - start));
    for (int64_t group = 0; group < g.panel_groups(); ++group) {
      T* to = y + start * g.outputs + group * g.group_outputs();
      for (int64_t first = 0; first < g.taps(); first += blocking.taps) {
        const int64_t last = std::min(first + blocking.taps, g.taps());
        panel.fill(positions, x + group * g.panel_channels(), group, first, last);
        forward_block(g, weight, panel, positions.count(), to, group, first, last);
      }
    }
  }
}

template <typename T>
void forward_typed(const Geometry& g, const Tensor& input, const Tensor& weight,
                   const Tensor& similarity, Tensor& output) {
  const Blocking<T> blocking(g);
  const PackedWeight<T> packed(g, blocking, weight, /*transposed=*/false);
  const SimilarityView<T> view(g, similarity);
  const int64_t total = g.batch * g.places();
  const int64_t slots = std::min<int64_t>(at::get_num_threads(), ceil_div(total, kRows));
  Scratch<T> scratch(input, slots, Panel<T>::size(g, blocking));
  const T* x = input.const_data_ptr<T>();
  T* y = output.mutable_data_ptr<T>();
  at::parallel_for(0, slots, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      forward_range(g, blocking, packed, view, x, y, share(total, slots, slot, kRows),
                    scratch.slot(slot));
    }
  });
}

}  // namespace
