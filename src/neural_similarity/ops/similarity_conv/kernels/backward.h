// The backward pass.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "forward.h"

namespace {

// The gradient of the input is added to in place, so ranges worked on at the same time must not
// touch the same input rows.  With enough samples every worker has its own samples: one phase.
// With few, samples are split into bands of output rows, each at least as tall as the kernel
// reaches: bands 0, 2, 4, ... are then disjoint, as are bands 1, 3, 5, ...: two phases.
std::vector<std::vector<Range>> phases_of(const Geometry& g, int64_t slots) {
  std::vector<std::vector<Range>> phases;
  if (enough_images(g)) {
    phases.emplace_back();
    for (int64_t slot = 0; slot < slots; ++slot) {
      const Range samples = share(g.batch, slots, slot, 1);
      phases[0].push_back({samples.begin * g.places(), samples.end * g.places()});
    }
    return phases;
  }
  const int64_t reach = std::max<int64_t>((g.kernel_h - 1) * g.dilation_h / g.stride_h, 1);
  const int64_t useful = 2 * ceil_div(2 * slots, g.batch);
  const int64_t bands = std::max<int64_t>(std::min(g.out_h / reach, useful), 1);
  phases.resize(2);
  for (int64_t n = 0; n < g.batch; ++n) {
    for (int64_t band = 0; band < bands; ++band) {
      const int64_t top = n * g.out_h + g.out_h * band / bands;
      const int64_t bottom = n * g.out_h + g.out_h * (band + 1) / bands;
      phases[band % 2].push_back({top * g.out_w, bottom * g.out_w});
    }
  }
  return phases;
}

// The output's gradient at some positions by column tiles, zero past the edge.
template <typename T>
void pack_gradient(const Geometry& g, const T* gy, int64_t positions, T* to) {
  const int64_t outputs = g.group_outputs();
  for (int64_t o = 0; o < outputs; o += kColumns<T>) {
    const int64_t count = std::min(kColumns<T>, outputs - o);
    for (int64_t i = 0; i < positions; ++i, to += kColumns<T>) {
      const T* from = gy + i * g.outputs + o;
      if (count == kColumns<T>) {
        Vec<T>::loadu(from).store(to);
        Vec<T>::loadu(from + Vec<T>::size()).store(to + Vec<T>::size());
      } else {
        std::copy_n(from, count, to);
        std::fill(to + count, to + kColumns<T>, T(0));
      }
    }
  }
}

// One worker of the backward pass, with its own scratch memory and partial sums.
template <typename T>
class BackwardWorker {
 public:
  BackwardWorker(const Geometry& g, const Blocking<T>& blocking, const PackedWeight<T>& weight,
                 const SimilarityView<T>& view, Wanted wanted, T* memory, T* gw, T* gm)
      : g_(g), blocking_(blocking), weight_(weight), wanted_(wanted),
        positions_(g, view, blocking.positions, gm), panel_(g, blocking, memory),
        depthwise_(g, needs_no_panel(g) ? weight.channels(0) : nullptr),
        packed_gy_(memory + round_up(Panel<T>::size(g, blocking), 64)), gw_(gw) {}

  static int64_t size(const Geometry& g, const Blocking<T>& blocking) {
    return round_up(Panel<T>::size(g, blocking), 64) +
        blocking.positions * round_up(g.group_outputs(), kColumns<T>);
  }

  // Elements of a partial gradient of the weight: [group][tap][channel][output, padded], or
  // depthwise [tap][channel].
  static int64_t weight_size(const Geometry& g) {
    if (g.depthwise()) {
      return g.taps() * g.channels;
    }
    return g.groups * g.taps() * g.group_channels() * round_up(g.group_outputs(), kColumns<T>);
  }

  // Work through a range.  If its samples are this worker's alone, their gradient is cleared here,
  // just before it is added to, while it is on its way into the cache anyway.
  void run(Range range, const T* gy, const T* x, T* gx, bool clear) {
    int64_t cleared = range.begin / g_.places();
    for (int64_t start = range.begin; start < range.end; start += blocking_.positions) {
      const int64_t count = std::min(blocking_.positions, range.end - start);
      const int64_t sample = g_.channels * g_.height * g_.width;
      for (; clear && gx && cleared * g_.places() < start + count; ++cleared) {
        std::fill_n(gx + cleared * sample, sample, T(0));
      }
      positions_.locate(start, count);
      positions_.clear_gradient();
      if (needs_no_panel(g_)) {
        for (int64_t i = 0; i < count; ++i) {
          depthwise_.backward(positions_.patch(i), positions_.similarity(i), x,
                              gy + (start + i) * g_.outputs, positions_.gradient(i), gx, gw_);
        }
      } else {
        for (int64_t group = 0; group < g_.panel_groups(); ++group) {
          run_group(group, gy + start * g_.outputs + group * g_.group_outputs(),
                    x + group * g_.panel_channels(),
                    gx ? gx + group * g_.panel_channels() : nullptr);
        }
      }
      positions_.store_gradient();
    }
  }

 private:
  static constexpr int64_t kPart = 20 * 1024 / sizeof(T);  // elements of a panel

  void run_group(int64_t group, const T* gy, const T* x, T* gx) {
    if (wanted_.weight && !g_.depthwise()) {
      pack_gradient(g_, gy, positions_.count(), packed_gy_);
    }
    for (int64_t block = 0; block < blocking_.blocks; ++block) {
      const int64_t first = block * blocking_.taps;
      const int64_t last = std::min(first + blocking_.taps, g_.taps());
      if (wanted_.input || wanted_.similarity) {
        // A few rows of the panel at a time, which stay in the first-level cache.
        const int64_t rows = std::max(kPart / panel_.row_size() / kRows, int64_t(1)) * kRows;
        for (int64_t begin = 0; begin < positions_.count(); begin += rows) {
          const int64_t end = std::min(begin + rows, positions_.count());
          spread_gy(group, block, gy, first, last, begin, end);
          panel_.reverse(positions_, begin, end, x, gx, wanted_, group, first, last);
        }
      } else {
        panel_.fill(positions_, x, group, first, last);
      }
      if (wanted_.weight) {
        add_weight_gradient(group, gy, first, last);
      }
    }
  }

  // The gradient of the weighted patches: panel = gy W^T
  void spread_gy(int64_t group, int64_t block, const T* gy, int64_t first, int64_t last,
                 int64_t begin, int64_t end) {
    if (g_.depthwise()) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t k = first; k < last; ++k) {
          multiply(panel_.row(i) + (k - first) * g_.channels, weight_.channels(k),
                   gy + i * g_.outputs, g_.channels, false);
        }
      }
      return;
    }
    const int64_t depth = (last - first) * g_.group_channels();
    for (int64_t i = 0; i < depth; i += kColumns<T>) {
      product({gy + begin * g_.outputs, g_.outputs, 1}, end - begin,
              weight_.patches(group, block, i / kColumns<T>), kColumns<T>, g_.group_outputs(),
              panel_.row(begin) + i, panel_.row_size(), tile_columns<T>(depth - i), false);
    }
  }

  // gW += panel^T gy
  void add_weight_gradient(int64_t group, const T* gy, int64_t first, int64_t last) {
    if (g_.depthwise()) {
      for (int64_t i = 0; i < positions_.count(); ++i) {
        for (int64_t k = first; k < last; ++k) {
          multiply(gw_ + k * g_.channels, panel_.row(i) + (k - first) * g_.channels,
                   gy + i * g_.outputs, g_.channels, true);
        }
      }
      return;
    }
    const int64_t outputs = g_.group_outputs(), padded = round_up(outputs, kColumns<T>);
    T* to = gw_ + (group * g_.taps() + first) * g_.group_channels() * padded;
    for (int64_t o = 0; o < outputs; o += kColumns<T>) {
      product({panel_.row(0), 1, panel_.row_size()}, (last - first) * g_.group_channels(),
              packed_gy_ + o * positions_.count(), kColumns<T>, positions_.count(), to + o, padded,
              tile_columns<T>(outputs - o), true);
    }
  }

  const Geometry& g_;
  const Blocking<T>& blocking_;
  const PackedWeight<T>& weight_;
  Wanted wanted_;
  Positions<T> positions_;
  Panel<T> panel_;
  Depthwise<T> depthwise_;
  T* packed_gy_;
  T* gw_;
};

// The partial gradients [slot][group][tap][channel][output, padded] as one (O, C/groups, K).
template <typename T>
void collect_weight_gradient(const Geometry& g, const Tensor& partial, Tensor& gw) {
  if (g.depthwise()) {
    gw.view({g.channels, g.taps()}).copy_(partial.sum(0).view({g.taps(), g.channels}).t());
    return;
  }
  const int64_t channels = g.group_channels(), taps = g.taps(), outputs = g.group_outputs();
  const int64_t padded = round_up(outputs, kColumns<T>);
  const int64_t slots = partial.size(0), size = partial.size(1);
  const T* from = partial.const_data_ptr<T>();
  T* to = gw.mutable_data_ptr<T>();
  at::parallel_for(0, g.outputs, 1, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      for (int64_t c = 0; c < channels; ++c) {
        for (int64_t k = 0; k < taps; ++k) {
          const T* place =
              from + ((o / outputs * taps + k) * channels + c) * padded + o % outputs;
          T sum = 0;
          for (int64_t slot = 0; slot < slots; ++slot) {
            sum += place[slot * size];
          }
          to[(o * channels + c) * taps + k] = sum;
        }
      }
    }
  });
}

// Planar images need workers that have their own images: `enough_images`.
template <typename T>
void backward_typed(const Geometry& g, const Tensor& grad_output, const Tensor& input,
                    const Tensor& weight, const Tensor& similarity, Wanted wanted, Tensor& gx,
                    Tensor& gw, Tensor& gm) {
  const Blocking<T> blocking(g);
  const PackedWeight<T> packed(g, weight, &blocking);
  const SimilarityView<T> view(g, similarity);
  const int64_t slots = workers_of(g);
  const auto phases = phases_of(g, slots);
  if (wanted.input && phases.size() > 1) {
    gx.zero_();
  }
  Scratch<T> scratch(input, slots, BackwardWorker<T>::size(g, blocking));
  Tensor partial_gw, partial_gm;
  if (wanted.weight) {
    partial_gw = at::zeros({slots, BackwardWorker<T>::weight_size(g)}, input.options());
  }
  if (wanted.similarity && g.collects()) {
    partial_gm = at::zeros({slots, gm.numel()}, input.options());
  }
  const bool planar = is_planar(grad_output) || is_planar(input) || (wanted.input && is_planar(gx));
  for (const auto& ranges : phases) {
    at::parallel_for(0, slots, 1, [&](int64_t begin, int64_t end) {
      for (int64_t slot = begin; slot < end; ++slot) {
        T* slot_gw =
            wanted.weight ? partial_gw.mutable_data_ptr<T>() + slot * partial_gw.size(1) : nullptr;
        T* slot_gm = nullptr;
        if (wanted.similarity) {
          slot_gm = g.collects() ? partial_gm.mutable_data_ptr<T>() + slot * partial_gm.size(1)
                             : gm.mutable_data_ptr<T>();
        }
        BackwardWorker<T> worker(g, blocking, packed, view, wanted, scratch.slot(slot), slot_gw,
                                 slot_gm);
        Images<T> gy(grad_output), x(input), to(wanted.input ? gx : Tensor());
        const auto run = [&](Range images, Range range) {
          worker.run(range, gy.load(images), x.load(images), to.place(images), phases.size() == 1);
          to.store(images);
        };
        if (planar) {
          for_each_few<T>(g, share(g.batch, slots, slot, 1), [&](Range images) {
            run(images, {images.begin * g.places(), images.end * g.places()});
          });
          continue;
        }
        const Range mine = share(static_cast<int64_t>(ranges.size()), slots, slot, 1);
        for (int64_t i = mine.begin; i < mine.end; ++i) {
          run({0, g.batch}, ranges[i]);
        }
      }
    });
  }
  if (wanted.weight) {
    collect_weight_gradient<T>(g, partial_gw, gw);
  }
  if (wanted.similarity && g.collects()) {
    gm.copy_(partial_gm.sum(0).view(gm.sizes()));
  }
}

}  // namespace
