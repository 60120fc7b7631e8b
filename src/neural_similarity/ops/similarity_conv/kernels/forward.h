// The forward pass.
#pragma once

#include <ATen/Parallel.h>

#include "depthwise.h"
#include "images.h"
#include "panel.h"
#include "weights.h"

namespace {

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
  Depthwise<T> depthwise(g, needs_no_panel(g) ? weight.channels(0) : nullptr);
  for (int64_t start = range.begin; start < range.end; start += blocking.positions) {
    positions.locate(start, std::min(blocking.positions, range.end - start));
    if (needs_no_panel(g)) {
      for (int64_t i = 0; i < positions.count(); ++i) {
        depthwise.forward(positions.patch(i), positions.similarity(i), x,
                          y + (start + i) * g.outputs);
      }
      continue;
    }
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

// Planar images need workers that have their own images: `enough_images`.
template <typename T>
void forward_typed(const Geometry& g, const Tensor& input, const Tensor& weight,
                   const Tensor& similarity, Tensor& output) {
  const Blocking<T> blocking(g);
  const PackedWeight<T> packed(g, weight);
  const SimilarityView<T> view(g, similarity);
  const int64_t total = g.batch * g.places();
  const int64_t slots = workers_of(g);
  Scratch<T> scratch(input, slots, Panel<T>::size(g, blocking));
  const bool planar = is_planar(input) || is_planar(output);
  at::parallel_for(0, slots, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      Images<T> x(input), y(output);
      const auto run = [&](Range images, Range range) {
        forward_range(g, blocking, packed, view, x.load(images), y.place(images), range,
                      scratch.slot(slot));
        y.store(images);
      };
      if (!planar) {
        run({0, g.batch}, share(total, slots, slot, kRows));
        continue;
      }
      for_each_few<T>(g, share(g.batch, slots, slot, 1), [&](Range images) {
        run(images, {images.begin * g.places(), images.end * g.places()});
      });
    }
  });
}

}  // namespace
