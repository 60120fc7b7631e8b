// The backward pass with one matrix per image.
//
// With the kernels of an image, V = M^T W, its gradients are those of a plain convolution: of the
// input by V, and of V by the patches as they are. The gradient T of V then gives both others:
//   gM[i, j] = <W[i], T[j]>,  gW[i] += sum_j M[i, j] T[j]
// A panel holds plain patches: there is nothing to mix at each position.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "backward.h"
#include "image_forward.h"

namespace {

template <typename T>
class ImageBackwardWorker {
 public:
  ImageBackwardWorker(const Geometry& g, const Blocking<T>& blocking,
                      const PackedWeight<T>& forward, const PackedWeight<T>& transposed,
                      const SimilarityView<T>& view, Wanted wanted, T* memory, T* gw, T* gm)
      : g_(g), blocking_(blocking), forward_(forward), transposed_(transposed), view_(view),
        wanted_(wanted), positions_(g, view, blocking.positions), panel_(memory),
        packed_gy_(panel_ + round_up(blocking.positions * blocking.row + kColumns<T>, 64)),
        kernels_(packed_gy_ + blocking.positions * padded_outputs(g)),
        gradient_(kernels_ + round_up(transposed.size(), 64)), gw_(gw), gm_(gm),
        padding_(g.group_channels(), T(0)) {}

  static int64_t size(const Geometry& g, const Blocking<T>& blocking,
                      const PackedWeight<T>& transposed) {
    return round_up(blocking.positions * blocking.row + kColumns<T>, 64) +
        blocking.positions * padded_outputs(g) + round_up(transposed.size(), 64) +
        weight_size(g);
  }

  // Elements of a gradient of the kernels: [group][tile of outputs][tap][channel][output in tile],
  // the order of the weights in the forward pass.
  static int64_t weight_size(const Geometry& g) {
    return g.groups * padded_outputs(g) * g.taps() * g.group_channels();
  }

  // One image; its gradient gx is cleared here.
  void run(int64_t n, const T* gy, const T* x, T* gx) {
    const T* matrix = view_.image(g_, n);
    if (wanted_.input) {
      mix_transposed(matrix);
      const int64_t sample = g_.channels * g_.height * g_.width;
      std::fill_n(gx + n * sample, sample, T(0));
    }
    const bool kernels = wanted_.weight || wanted_.similarity;
    if (kernels) {
      std::fill_n(gradient_, weight_size(g_), T(0));
    }
    const int64_t last = (n + 1) * g_.places();
    for (int64_t start = n * g_.places(); start < last; start += blocking_.positions) {
      positions_.locate(start, std::min(blocking_.positions, last - start));
      for (int64_t group = 0; group < g_.groups; ++group) {
        const int64_t channel = group * g_.group_channels();
        run_group(group, gy + start * g_.outputs + group * g_.group_outputs(), x + channel,
                  wanted_.input ? gx + channel : nullptr, kernels);
      }
    }
    if (wanted_.similarity) {
      add_matrix_gradient(gm_ + (g_.shared ? 0 : n) * g_.entries());
    }
    if (wanted_.weight) {
      add_weight_gradient(matrix);
    }
  }

 private:
  static int64_t padded_outputs(const Geometry& g) {
    return round_up(g.group_outputs(), kColumns<T>);
  }
  int64_t tap_size() const { return g_.group_channels() * kColumns<T>; }

  // Kernels of the image in the order of the transposed weights. A tile holds channels of one tap.
  void mix_transposed(const T* matrix) {
    const int64_t taps = g_.taps(), outputs = g_.group_outputs();
    const int64_t tiles = g_.group_channels() / kColumns<T>;
    for (int64_t group = 0; group < g_.groups; ++group) {
      for (int64_t tile = 0; tile < tiles; ++tile) {
        for (int64_t j = 0; j < taps; ++j) {
          T* to = kernels_ + (patches(group, j, tile) - patches(0, 0, 0));
          scaled(to, matrix[j], patches(group, 0, tile), outputs * kColumns<T>);
          for (int64_t i = 1; i < taps; ++i) {
            add_scaled(to, matrix[i * taps + j], patches(group, i, tile), outputs * kColumns<T>);
          }
        }
      }
    }
  }

  const T* patches(int64_t group, int64_t tap, int64_t tile) const {
    const int64_t tiles = g_.group_channels() / kColumns<T>;
    return transposed_.patches(group, tap / blocking_.taps, tap % blocking_.taps * tiles + tile);
  }

  void run_group(int64_t group, const T* gy, const T* x, T* gx, bool kernels) {
    if (kernels) {
      pack_gradient(g_, gy, positions_.count(), packed_gy_);
    }
    for (int64_t first = 0; first < g_.taps(); first += blocking_.taps) {
      const int64_t last = std::min(first + blocking_.taps, g_.taps());
      if (gx) {
        spread_gy(group, gy, first, last);
        add_to_input(gx, first, last);
      }
      if (kernels) {
        gather(x, first, last);
        add_kernel_gradient(group, first, last);
      }
    }
  }

  // The gradient of the patches: panel = gy V^T
  void spread_gy(int64_t group, const T* gy, int64_t first, int64_t last) {
    const T* from = kernels_ + (patches(group, first, 0) - patches(0, 0, 0));
    const int64_t step = g_.group_outputs() * kColumns<T>;
    for (int64_t i = 0; i < (last - first) * g_.group_channels(); i += kColumns<T>, from += step) {
      product({gy, g_.outputs, 1}, positions_.count(), from, kColumns<T>, g_.group_outputs(),
              panel_ + i, blocking_.row, kColumns<T>, false);
    }
  }

  void add_to_input(T* gx, int64_t first, int64_t last) {
    for (int64_t i = 0; i < positions_.count(); ++i) {
      const T* from = panel_ + i * blocking_.row;
      for (int64_t k = first; k < last; ++k, from += g_.group_channels()) {
        if (positions_.patch(i)[k] >= 0) {
          add(gx + positions_.patch(i)[k], from, g_.group_channels());
        }
      }
    }
  }

  void gather(const T* x, int64_t first, int64_t last) {
    for (int64_t i = 0; i < positions_.count(); ++i) {
      T* to = panel_ + i * blocking_.row;
      for (int64_t k = first; k < last; ++k, to += g_.group_channels()) {
        const int64_t place = positions_.patch(i)[k];
        std::copy_n(place < 0 ? padding_.data() : x + place, g_.group_channels(), to);
      }
    }
  }

  // T += panel^T gy
  void add_kernel_gradient(int64_t group, int64_t first, int64_t last) {
    const int64_t tiles = padded_outputs(g_) / kColumns<T>;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      product({panel_, 1, blocking_.row}, (last - first) * g_.group_channels(),
              packed_gy_ + tile * positions_.count() * kColumns<T>, kColumns<T>,
              positions_.count(),
              gradient_ + ((group * tiles + tile) * g_.taps() + first) * tap_size(), kColumns<T>,
              kColumns<T>, true);
    }
  }

  void add_matrix_gradient(T* gm) {
    const int64_t taps = g_.taps(), tiles = padded_outputs(g_) / kColumns<T>;
    for (int64_t tile = 0; tile < g_.groups * tiles; ++tile) {
      const T* weight = forward_.outputs(tile / tiles, tile % tiles, 0);
      const T* gradient = gradient_ + tile * taps * tap_size();
      for (int64_t i = 0; i < taps; ++i) {
        int64_t j = 0;
        for (; j + 3 <= taps; j += 3) {
          add_dots<T, 1, 3>(gm + i * taps + j, taps, weight + i * tap_size(), tap_size(),
                            gradient + j * tap_size(), tap_size(), tap_size());
        }
        for (; j < taps; ++j) {
          add_dots<T, 1, 1>(gm + i * taps + j, taps, weight + i * tap_size(), tap_size(),
                            gradient + j * tap_size(), tap_size(), tap_size());
        }
      }
    }
  }

  void add_weight_gradient(const T* matrix) {
    const int64_t taps = g_.taps(), tiles = padded_outputs(g_) / kColumns<T>;
    for (int64_t tile = 0; tile < g_.groups * tiles; ++tile) {
      const int64_t start = tile * taps * tap_size();
      for (int64_t c = 0; c < tap_size(); c += kColumns<T>) {
        product({matrix, taps, 1}, taps, gradient_ + start + c, tap_size(), taps, gw_ + start + c,
                tap_size(), kColumns<T>, true);
      }
    }
  }

  const Geometry& g_;
  const Blocking<T>& blocking_;
  const PackedWeight<T>& forward_;
  const PackedWeight<T>& transposed_;
  const SimilarityView<T>& view_;
  Wanted wanted_;
  Positions<T> positions_;
  T* panel_;
  T* packed_gy_;
  T* kernels_;
  T* gradient_;
  T* gw_;
  T* gm_;
  std::vector<T> padding_;
};

// Whether the kernels of an image can be mixed tile by tile, and whether that pays: they and their
// gradient should fit the second-level cache.
template <typename T>
bool worth_own_gradients(const Geometry& g) {
  constexpr int64_t kMostBytes = 192 * 1024;
  const int64_t bytes =
      g.outputs * g.group_channels() * g.taps() * static_cast<int64_t>(sizeof(T));
  return g.full && worth_own_kernels(g) && g.group_channels() % kColumns<T> == 0 &&
      bytes <= kMostBytes;
}

template <typename T>
void backward_images(const Geometry& g, const Tensor& grad_output, const Tensor& input,
                     const Tensor& weight, const Tensor& similarity, Wanted wanted, Tensor& gx,
                     Tensor& gw, Tensor& gm) {
  using Worker = ImageBackwardWorker<T>;
  const Blocking<T> blocking(g);
  const PackedWeight<T> forward(g, blocking, weight, /*transposed=*/false);
  const PackedWeight<T> transposed(g, blocking, weight, /*transposed=*/true);
  const SimilarityView<T> view(g, similarity);
  const int64_t slots = std::min<int64_t>(at::get_num_threads(), g.batch);
  Scratch<T> scratch(input, slots, Worker::size(g, blocking, transposed));
  const Tensor partial_gw = at::zeros({slots, Worker::weight_size(g)}, input.options());
  const Tensor partial_gm = at::zeros({slots, similarity.numel()}, input.options());
  const T* gy = grad_output.const_data_ptr<T>();
  const T* x = input.const_data_ptr<T>();
  T* to_gx = wanted.input ? gx.mutable_data_ptr<T>() : nullptr;
  at::parallel_for(0, slots, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      Worker worker(g, blocking, forward, transposed, view, wanted, scratch.slot(slot),
                    partial_gw.mutable_data_ptr<T>() + slot * partial_gw.size(1),
                    partial_gm.mutable_data_ptr<T>() + slot * partial_gm.size(1));
      const Range mine = share(g.batch, slots, slot, 1);
      for (int64_t n = mine.begin; n < mine.end; ++n) {
        worker.run(n, gy, x, to_gx);
      }
    }
  });
  if (wanted.weight) {
    // [group][tile][tap][channel][output in tile] to (O, C/groups, K)
    const int64_t tiles = ceil_div(g.group_outputs(), kColumns<T>);
    const Tensor sum = partial_gw.sum(0).view(
        {g.groups, tiles, g.taps(), g.group_channels(), kColumns<T>});
    const Tensor ordered = sum.permute({0, 1, 4, 3, 2}).reshape(
        {g.groups, tiles * kColumns<T>, g.group_channels(), g.taps()});
    gw.copy_(ordered.narrow(1, 0, g.group_outputs()).reshape(gw.sizes()));
  }
  if (wanted.similarity) {
    gm.copy_(partial_gm.sum(0).view(gm.sizes()));
  }
}

}  // namespace
