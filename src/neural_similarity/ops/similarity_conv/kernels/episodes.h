// A tuning step in many episodes at once, and the features of their images.
//
// The network is a chain of layers, see episode_layer.h,
//
//   y = relu(pool(conv(x, K[b]) * scale + shift)),  K[b] = W[b]  or  m[b] W,
//
// with a kernel K for every episode b.  A thread processes one episode at a time, and its images
// one by one, forward and backward, so that everything stays in the second-level cache.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <tuple>

#include "episode_backward.h"
#include "episode_winograd.h"
#include "transpose.h"

namespace {

using at::TensorList;

// The layers with their operands as the caller passed them.
struct EpisodeOperands {
  std::vector<EpisodeLayer> layers;
  std::vector<Tensor> weights, taps, scales, shifts;
  int64_t episodes;

  EpisodeOperands(const Tensor& images, TensorList weight, TensorList tap, TensorList scale,
                  TensorList shift, IntArrayRef padding, IntArrayRef pool)
      : episodes(images.size(0)) {
    TORCH_CHECK(images.dim() == 5, "images must have 5 axes");
    const size_t count = weight.size();
    TORCH_CHECK(count > 0 && tap.size() == count && scale.size() == count &&
                    shift.size() == count && padding.size() == 2 * count && pool.size() == count,
                "every layer needs all of its operands");
    std::vector<int64_t> shape{images.size(2), images.size(3), images.size(4)};
    for (size_t i = 0; i < count; ++i) {
      for (const Tensor& tensor : {weight[i], tap[i], scale[i], shift[i]}) {
        TORCH_CHECK(tensor.scalar_type() == images.scalar_type(), "all must have one dtype");
      }
      layers.push_back(
          episode_layer(shape, weight[i], tap[i], padding[2 * i], padding[2 * i + 1], pool[i]));
      const EpisodeLayer& g = layers.back();
      TORCH_CHECK((g.shared ? tap[i] : weight[i]).size(0) == episodes &&
                      scale[i].numel() == g.outputs && shift[i].numel() == g.outputs,
                  "operands do not fit the episodes and outputs");
      shape = {g.outputs, g.out_h, g.out_w};
      weights.push_back(weight[i].contiguous()), taps.push_back(tap[i].contiguous());
      scales.push_back(scale[i].contiguous()), shifts.push_back(shift[i].contiguous());
    }
  }

  int64_t image_size() const {
    return layers[0].channels * layers[0].height * layers[0].width;
  }
  int64_t features() const { return layers.back().map_size(); }
};

// What a layer needs for all episodes: weights that they share, laid out for both passes.
template <typename T>
struct SharedLayer {
  SharedLayer(const EpisodeLayer& layer, const Tensor& weight_, const Tensor& taps_,
              const Tensor& scale_, const Tensor& shift_, bool backward)
      : g(layer), slabs(layer), weight(weight_.const_data_ptr<T>()),
        taps(taps_.const_data_ptr<T>()), scale(scale_.const_data_ptr<T>()),
        columns_size(round_up(g.outputs, kColumns<T>) * g.kernel_size()),
        shift(round_up(g.outputs, kColumns<T>)),
        memory(weight_, 2, g.shared ? std::max(columns_size, slabs.size()) : 0) {
    std::copy_n(shift_.const_data_ptr<T>(), g.outputs, shift.begin());
    if (g.shared) {
      pack_columns(g, weight, scale, memory.slot(0));
      if (backward) {
        slabs.pack(weight, memory.slot(1));
      }
    }
  }

  const EpisodeLayer& g;
  const Slabs<T> slabs;
  const T *weight, *taps, *scale;
  int64_t columns_size;
  std::vector<T> shift;
  Scratch<T> memory;
};

// A layer in one thread, with the memory for one image.
template <typename T>
class LayerWorker {
 public:
  LayerWorker(SharedLayer<T>& layer, const Tensor& like, bool first)
      : g(layer.g), layer_(layer), first_(first), winograd_(worth_winograd(g, width)),
        rows_(like, 1, 2 * g.out_w * g.window * kColumns<T>),
        images_(like, 2, g.padded_size() + 2 * width), columns_(like, 1, layer.columns_size),
        kernels_(like, 2, layer.slabs.size()),
        frequencies_(like, 2, winograd_ ? std::max(kFrequencies * layer.columns_size / 9,
                                                   winograd_memory<T>(g)) : 0),
        route_(g.map_size()), entries_(g) {
    std::fill_n(padded(), g.padded_size() + 2 * width, T(0));  // slabs read past a kernel's row
  }

  const EpisodeLayer& g;
  T* padded() { return images_.slot(0); }
  T* grad_padded() { return images_.slot(1); }

  // The kernels of an episode, for the forward pass.
  void begin(int64_t episode) {
    if (g.shared) {
      scale_columns(g, layer_.memory.slot(0), layer_.taps + episode * g.taps(), columns_.slot(0));
    } else {
      pack_columns(g, layer_.weight + episode * g.weight_size(), layer_.scale, columns_.slot(0));
    }
    if (winograd_) {
      winograd_kernel(g, columns_.slot(0), frequencies_.slot(0));
    }
  }

  void forward(T* out, int64_t out_row) {
    if (winograd_) {
      winograd_image(g, padded(), frequencies_.slot(0), layer_.shift.data(), rows_.slot(0),
                     frequencies_.slot(1), out, out_row, route_.data());
      return;
    }
    forward_image(g, padded(), columns_.slot(0), layer_.shift.data(), rows_.slot(0), out, out_row,
                  route_.data());
  }

  // For the backward pass.
  void begin_gradient(int64_t episode) {
    std::fill_n(sums(), layer_.slabs.size(), T(0));
    if (g.shared) {
      layer_.slabs.spread(layer_.taps + episode * g.taps(), own());
    } else {
      layer_.slabs.pack(layer_.weight + episode * g.weight_size(), own());
    }
  }

  void backward(const T* gradient, int64_t gradient_row) {
    const bool by_patches = !first_;
    if (by_patches) {
      std::fill_n(grad_padded(), g.padded_size() + 2 * width, T(0));
      entries_.collect(g, gradient, gradient_row, layer_.scale, route_.data());
    }
    layer_.slabs.visit([&](int64_t first, int64_t count) {
      const int64_t* offsets = layer_.slabs.offsets() + first;
      const int64_t at = first * width, slab = at * g.outputs;
      with_slab<kSlab>(count, [&](auto size) {
        if (by_patches && g.shared) {
          reverse_slab<T, size(), true>(
              g, entries_, offsets,
              {padded(), layer_.memory.slot(1) + slab, own() + at, sums() + at, grad_padded()});
        } else if (by_patches) {
          reverse_slab<T, size(), false>(
              g, entries_, offsets, {padded(), own() + slab, nullptr, nullptr, grad_padded()});
        }
        if (!by_patches || !g.shared) {
          reverse_weights<T, size()>(g, offsets, padded(), gradient, gradient_row, layer_.scale,
                                     route_.data(), sums() + slab);
        }
      });
    });
  }

  // The gradient of the episode's factors, or of its weight.
  void finish(T* out) {
    if (!g.shared) {
      layer_.slabs.unpack(sums(), out);
      return;
    }
    if (first_) {  // sums over outputs of the gradient times the weight
      const T* weight = layer_.memory.slot(1);
      std::fill_n(own(), layer_.slabs.kernel_size(), T(0));
      layer_.slabs.visit([&](int64_t first, int64_t count) {
        for (int64_t o = 0; o < g.outputs; ++o) {
          const int64_t at = first * width * g.outputs + o * count * width;
          multiply(own() + first * width, sums() + at, weight + at, count * width, true);
        }
      });
    }
    std::fill_n(out, g.taps(), T(0));
    layer_.slabs.gather(first_ ? own() : sums(), out);
  }

 private:
  static constexpr int64_t width = Vec<T>::size();
  T* own() { return kernels_.slot(0); }
  T* sums() { return kernels_.slot(1); }

  SharedLayer<T>& layer_;
  bool first_;  // the gradient of its input is not needed
  bool winograd_;
  Scratch<T> rows_, images_, columns_, kernels_, frequencies_;
  std::vector<Route<T>> route_;
  Entries<T> entries_;
};

// The whole chain in one thread.
template <typename T>
class EpisodeWorker {
 public:
  EpisodeWorker(std::vector<SharedLayer<T>>& layers, const Tensor& like)
      : size_(layers.back().g.map_size()), map_(size_), grad_map_(size_) {
    workers_.reserve(layers.size());
    for (SharedLayer<T>& layer : layers) {
      workers_.emplace_back(layer, like, workers_.empty());
    }
  }

  void begin(int64_t episode, bool backward) {
    for (LayerWorker<T>& worker : workers_) {
      worker.begin(episode);
      if (backward) {
        worker.begin_gradient(episode);
      }
    }
  }

  // Features (in the order of channels, then positions) of an image whose channels come last.
  void forward(const T* image, T* features) {
    const EpisodeLayer& first = workers_[0].g;
    const int64_t row = first.width * first.channels;
    for (int64_t y = 0; y < first.height; ++y) {
      std::copy_n(image + y * row, row, workers_[0].padded() + first.middle() + y * first.row());
    }
    for (size_t i = 0; i + 1 < workers_.size(); ++i) {
      const EpisodeLayer& next = workers_[i + 1].g;
      workers_[i].forward(workers_[i + 1].padded() + next.middle(), next.row());
    }
    const EpisodeLayer& last = workers_.back().g;
    workers_.back().forward(map_.data(), last.out_w * last.outputs);
    transpose(map_.data(), last.places(), last.outputs, features);
  }

  void backward(const T* grad_features) {
    const EpisodeLayer& last = workers_.back().g;
    transpose(grad_features, last.outputs, last.places(), grad_map_.data());
    const T* gradient = grad_map_.data();
    int64_t row = last.out_w * last.outputs;
    for (size_t i = workers_.size(); i-- > 0;) {
      workers_[i].backward(gradient, row);
      gradient = workers_[i].grad_padded() + workers_[i].g.middle(), row = workers_[i].g.row();
    }
  }

  void finish(int64_t episode, std::vector<Tensor>& gradients) {
    for (size_t i = 0; i < workers_.size(); ++i) {
      const int64_t size = gradients[i].numel() / gradients[i].size(0);
      workers_[i].finish(gradients[i].template mutable_data_ptr<T>() + episode * size);
    }
  }

 private:
  int64_t size_;
  std::vector<T> map_, grad_map_;
  std::vector<LayerWorker<T>> workers_;
};

template <typename T>
std::vector<SharedLayer<T>> shared_layers(const EpisodeOperands& operands, bool backward) {
  std::vector<SharedLayer<T>> layers;
  layers.reserve(operands.layers.size());
  for (size_t i = 0; i < operands.layers.size(); ++i) {
    layers.emplace_back(operands.layers[i], operands.weights[i], operands.taps[i],
                        operands.scales[i], operands.shifts[i], backward);
  }
  return layers;
}

// A linear classifier of one episode: from features to the gradient of their cross-entropy.
template <typename T>
struct EpisodeClassifier {
  const T *weight, *bias;
  T *grad_weight, *grad_bias;
  int64_t ways, features;

  // `share` is the weight of the image in the mean loss.
  void reverse(const T* input, int64_t label, T share, T* scores, T* grad_input) const {
    std::copy_n(bias, ways, scores);
    add_dots_rows(input, scores);
    const T most = *std::max_element(scores, scores + ways);
    T sum = 0;
    for (int64_t k = 0; k < ways; ++k) {
      scores[k] = std::exp(scores[k] - most);
      sum += scores[k];
    }
    std::fill_n(grad_input, features, T(0));
    for (int64_t k = 0; k < ways; ++k) {
      const T error = (scores[k] / sum - (k == label ? T(1) : T(0))) * share;
      grad_bias[k] += error;
      add_scaled(grad_weight + k * features, error, input, features);
      add_scaled(grad_input, error, weight + k * features, features);
    }
  }

 private:
  void add_dots_rows(const T* input, T* scores) const {
    for (int64_t k = 0; k < ways; ++k) {
      add_dots<T, 1, 1>(scores + k, 1, weight + k * features, 0, input, 0, features);
    }
  }
};

Tensor episode_features(const Tensor& images, TensorList weights, TensorList taps,
                        TensorList scales, TensorList shifts, IntArrayRef padding,
                        IntArrayRef pool) {
  const EpisodeOperands operands(images, weights, taps, scales, shifts, padding, pool);
  const Tensor x = images.permute({0, 1, 3, 4, 2}).contiguous();
  const int64_t count = x.size(1), size = operands.image_size(), width = operands.features();
  const Tensor result = at::empty({operands.episodes, count, width}, images.options());
  for_type(images.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    auto layers = shared_layers<T>(operands, false);
    const T* from = x.const_data_ptr<T>();
    T* to = result.mutable_data_ptr<T>();
    at::parallel_for(0, operands.episodes, 1, [&](int64_t begin, int64_t end) {
      EpisodeWorker<T> worker(layers, x);
      for (int64_t b = begin; b < end; ++b) {
        worker.begin(b, false);
        for (int64_t i = b * count; i < (b + 1) * count; ++i) {
          worker.forward(from + i * size, to + i * width);
        }
      }
    });
  });
  return result;
}

// The gradients of the mean cross-entropy of some images of every episode: of the factors or the
// weight of every layer, of the classifier's weight and bias.
std::vector<Tensor> episode_gradients(const Tensor& images, const Tensor& rows,
                                      const Tensor& labels, TensorList weights, TensorList taps,
                                      TensorList scales, TensorList shifts, IntArrayRef padding,
                                      IntArrayRef pool, const Tensor& classifier,
                                      const Tensor& bias) {
  const EpisodeOperands operands(images, weights, taps, scales, shifts, padding, pool);
  const Tensor x = images.permute({0, 1, 3, 4, 2}).contiguous();
  const int64_t count = x.size(1), size = operands.image_size(), width = operands.features();
  const int64_t ways = bias.size(1), row_count = rows.numel();
  TORCH_CHECK(classifier.sizes() == IntArrayRef({operands.episodes, ways, width}) &&
                  bias.sizes() == IntArrayRef({operands.episodes, ways}) &&
                  classifier.scalar_type() == x.scalar_type() &&
                  bias.scalar_type() == x.scalar_type(),
              "the classifier does not fit the features");
  TORCH_CHECK(rows.scalar_type() == at::kLong && labels.scalar_type() == at::kLong &&
                  labels.numel() == count && rows.is_contiguous() && labels.is_contiguous(),
              "rows and labels must be contiguous integers, one label for every image");
  const int64_t *which = rows.const_data_ptr<int64_t>(), *label = labels.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < row_count; ++i) {
    TORCH_CHECK(which[i] >= 0 && which[i] < count, "a row is not one of the images");
  }
  const Tensor w = classifier.contiguous(), c = bias.contiguous();
  std::vector<Tensor> gradients;
  for (size_t i = 0; i < operands.layers.size(); ++i) {
    gradients.push_back(
        at::empty_like(operands.layers[i].shared ? operands.taps[i] : operands.weights[i]));
  }
  const Tensor gw = at::zeros_like(w), gc = at::zeros_like(c);
  for_type(images.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    auto layers = shared_layers<T>(operands, true);
    const T* from = x.const_data_ptr<T>();
    at::parallel_for(0, operands.episodes, 1, [&](int64_t begin, int64_t end) {
      EpisodeWorker<T> worker(layers, x);
      std::vector<T> features(width), grad_features(width), scores(ways);
      for (int64_t b = begin; b < end; ++b) {
        const EpisodeClassifier<T> linear{w.const_data_ptr<T>() + b * ways * width,
                                          c.const_data_ptr<T>() + b * ways,
                                          gw.mutable_data_ptr<T>() + b * ways * width,
                                          gc.mutable_data_ptr<T>() + b * ways, ways, width};
        worker.begin(b, true);
        for (int64_t i = 0; i < row_count; ++i) {
          worker.forward(from + (b * count + which[i]) * size, features.data());
          linear.reverse(features.data(), label[which[i]], T(1) / static_cast<T>(row_count),
                         scores.data(), grad_features.data());
          worker.backward(grad_features.data());
        }
        worker.finish(b, gradients);
      }
    });
  });
  gradients.push_back(gw), gradients.push_back(gc);
  return gradients;
}

}  // namespace
