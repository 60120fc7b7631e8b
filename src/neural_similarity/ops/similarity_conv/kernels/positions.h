// The positions of an output: where their patches lie in the input, and their similarity.
#pragma once

#include <vector>

#include "geometry.h"
#include "transpose.h"

namespace {

// A similarity as it lies in memory: any strides, so that the caller never copies it.
template <typename T>
struct SimilarityView {
  const T* data;
  int64_t sample, row, column;  // strides, 0 where one entry serves all
  std::vector<int64_t> factor;  // offset of every factor of a position: [tap][tap or lane]
  int64_t planes = 0;           // stride of the factors, if neighbours in a row are adjacent
  std::vector<T> images;        // with one similarity per image: its factors, image by image

  SimilarityView(const Geometry& g, const Tensor& similarity)
      : data(similarity.const_data_ptr<T>()),
        sample(g.shared ? 0 : similarity.stride(0)),
        row(g.factor_h == 1 ? 0 : similarity.stride(-2)),
        column(g.factor_w == 1 ? 0 : similarity.stride(-1)) {
    if (g.factored) {
      return;  // used in place
    }
    for (int64_t i = 0; i < g.taps(); ++i) {
      for (int64_t j = 0; j < g.factors() / g.taps(); ++j) {
        factor.push_back(g.full ? i * similarity.stride(1) + j * similarity.stride(2)
                                : (j * g.similarity_groups / g.lanes * g.taps() + i) *
                                      similarity.stride(1));
      }
    }
    if (column == 1 && (g.full || g.lanes == 1)) {
      const int64_t step = similarity.stride(g.full ? 2 : 1);
      planes = !g.full || similarity.stride(1) == g.taps() * step ? step : 0;
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
// rows, or columns, with the same taps inside form a class; each pair of classes has one list.
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
    if (g_.per_image()) {
      return;
    }
    // Factor by factor, since that is how a similarity usually lies in memory.
    if (view_.planes > 0) {
      for_each_run(source_, [&](int64_t begin, int64_t end) {
        transpose(view_.data + source_[begin], view_.planes, factors, end - begin,
                  &similarity_[begin * factors], factors);
      });
      return;
    }
    for (int64_t f = 0; f < factors; ++f) {
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

  // Put the gradient of the similarity where it belongs, or add it if several positions share it.
  void store_gradient() const {
    if (!to_ || g_.in_place()) {
      return;
    }
    const int64_t factors = g_.factors();
    const int64_t step = last() ? 1 : g_.factor_h * g_.factor_w;
    const bool repeats = !g_.full && g_.lanes > g_.similarity_groups;
    if (!last() && !g_.collects() && (g_.full || g_.lanes == 1)) {
      for_each_run(place_, [&](int64_t begin, int64_t end) {
        transpose(&gradient_[begin * factors], factors, end - begin, factors, to_ + place_[begin],
                  step);
      });
      return;
    }
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

  // Sums have the order of a contiguous similarity, whatever the order of the similarity itself.
  bool last() const { return g_.taps_last && !g_.collects(); }

  // Calls f with the first position, and the one after the last, of each part without gaps.
  template <typename F>
  void for_each_run(const std::vector<int64_t>& offsets, const F& f) const {
    for (int64_t begin = 0, end = 1; begin < count_; begin = end++) {
      while (end < count_ && offsets[end] == offsets[end - 1] + 1) {
        ++end;
      }
      f(begin, end);
    }
  }

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

}  // namespace
