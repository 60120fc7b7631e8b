// Work on maps channel by channel: BatchNorm's statistics, its affine maps and their gradients.
//
// Channels are adjacent and need not fill vectors. So per-channel constants are repeated up to the
// least common multiple of channels and vector width, and maps are processed in such periods.
#pragma once

#include <cmath>
#include <numeric>
#include <vector>

#include "products.h"

namespace {

template <typename T>
class Repeated {
 public:
  explicit Repeated(const std::vector<double>& values)
      : memory_(std::lcm<int64_t>(static_cast<int64_t>(values.size()), Vec<T>::size())) {
    for (size_t i = 0; i < memory_.size(); ++i) {
      memory_[i] = static_cast<T>(values[i % values.size()]);
    }
  }
  int64_t period() const { return static_cast<int64_t>(memory_.size()); }
  Vec<T> at(int64_t j) const { return Vec<T>::loadu(&memory_[j]); }

 private:
  std::vector<T> memory_;
};

// f(i, j, count) for all vectors of a map that begins at a first channel: i is the place in the
// map, j in a period, and count the elements of the vector that are part of the map.
template <typename T, typename F>
inline void for_vectors(int64_t size, int64_t period, const F& f) {
  constexpr int width = Vec<T>::size();
  int64_t i = 0;
  for (; i + period <= size; i += period) {
    for (int64_t j = 0; j < period; j += width) {
      f(i + j, j, width);
    }
  }
  for (int64_t j = 0; i + j < size; j += width) {
    f(i + j, j, static_cast<int>(std::min<int64_t>(width, size - i - j)));
  }
}

// For every channel, sums of f and of f (h - shift) over positions. A few dozen terms are summed in
// the map's dtype, these sums in float64: the gradient of a gain multiplies the error of a mean by
// the number of positions.
template <typename T>
class ChannelSums {
 public:
  explicit ChannelSums(int64_t channels)
      : shift(channels), sum(channels), product(channels), channels_(channels),
        period_(std::lcm<int64_t>(channels, Vec<T>::size())), shifts_(period_), sums_(period_),
        products_(period_) {}

  void set_shift(const std::vector<double>& values) {
    for (int64_t i = 0; i < period_; ++i) {
      shifts_[i] = static_cast<T>(values[i % channels_]);
    }
    shift.assign(shifts_.begin(), shifts_.begin() + channels_);  // as rounded: this is subtracted
  }

  void add(const T* f, const T* h, int64_t positions) {
    const int64_t most = kTerms * period_ / channels_;
    for (int64_t begin = 0; begin < positions; begin += most) {
      const int64_t some = std::min(most, positions - begin);
      add_some(f + begin * channels_, h + begin * channels_, some * channels_);
      flush();
    }
    count += positions;
  }

  // Sums of h and of its square, with its first values as the shift, so that the square loses no
  // precision in a map with a large mean and a small variance.
  void add(const T* h, int64_t positions) {
    if (count == 0 && positions > 0) {
      set_shift(std::vector<double>(h, h + channels_));
    }
    add(h, h, positions);
  }

  int64_t count = 0;
  std::vector<double> shift, sum, product;

 private:
  static constexpr int64_t kTerms = 64;

  void flush() {
    for (int64_t i = 0; i < period_; i += channels_) {
      for (int64_t c = 0; c < channels_; ++c) {
        sum[c] += sums_[i + c];
        product[c] += products_[i + c];
      }
    }
    std::fill(sums_.begin(), sums_.end(), T(0));
    std::fill(products_.begin(), products_.end(), T(0));
  }

  void add_some(const T* f, const T* h, int64_t size) {
    constexpr int width = Vec<T>::size();
    for_vectors<T>(size, period_, [&](int64_t i, int64_t j, int elements) {
      Vec<T> right = Vec<T>::loadu(h + i, elements) - Vec<T>::loadu(&shifts_[j]);
      Vec<T> left = f == h ? right : Vec<T>::loadu(f + i, elements);
      if (elements < width) {  // past the end there are zeros, but not after the shift
        left = Vec<T>::set(Vec<T>(T(0)), left, elements);
      }
      (Vec<T>::loadu(&sums_[j]) + left).store(&sums_[j]);
      at::vec::fmadd(left, right, Vec<T>::loadu(&products_[j])).store(&products_[j]);
    });
  }

  int64_t channels_, period_;
  std::vector<T> shifts_, sums_, products_;
};

// Mean and biased variance of every channel.
struct Statistics {
  std::vector<double> mean, variance;
  int64_t count = 0;

  std::vector<double> inverse_deviation(double eps) const {
    std::vector<double> values;
    for (const double v : variance) {
      values.push_back(1 / std::sqrt(v + eps));
    }
    return values;
  }
};

// The combined statistics of all workers' parts (Chan, Golub and LeVeque).
template <typename T>
Statistics statistics_of(std::vector<ChannelSums<T>>& parts, int64_t channels) {
  Statistics all{std::vector<double>(channels), std::vector<double>(channels)};
  for (const ChannelSums<T>& part : parts) {
    if (part.count == 0) {
      continue;
    }
    const double n = static_cast<double>(part.count), before = static_cast<double>(all.count);
    for (int64_t c = 0; c < channels; ++c) {
      const double offset = part.sum[c] / n, difference = part.shift[c] + offset - all.mean[c];
      all.mean[c] += difference * n / (before + n);
      all.variance[c] += part.product[c] - part.sum[c] * offset +
          difference * difference * before * n / (before + n);
    }
    all.count += part.count;
  }
  for (double& v : all.variance) {
    // Rounding may make it negative; NaN stays NaN.
    v = v < 0 ? 0 : v / static_cast<double>(std::max<int64_t>(all.count, 1));
  }
  return all;
}

// BatchNorm as an affine map of every channel: y = scale x + offset.
template <typename T>
struct Affine {
  Repeated<T> scale, offset;

  Affine(const Statistics& s, const T* gain, const T* bias, double eps)
      : scale(scales(s, gain, eps)), offset(offsets(s, gain, bias, eps)) {}

  Vec<T> operator()(Vec<T> x, int64_t j) const {
    return at::vec::fmadd(scale.at(j), x, offset.at(j));
  }

 private:
  static std::vector<double> scales(const Statistics& s, const T* gain, double eps) {
    std::vector<double> values = s.inverse_deviation(eps);
    for (size_t c = 0; c < values.size(); ++c) {
      values[c] *= gain[c];
    }
    return values;
  }
  static std::vector<double> offsets(const Statistics& s, const T* gain, const T* bias,
                                     double eps) {
    std::vector<double> values = scales(s, gain, eps);
    for (size_t c = 0; c < values.size(); ++c) {
      values[c] = bias[c] - s.mean[c] * values[c];
    }
    return values;
  }
};

// The gradient of BatchNorm's input x from that of its output g, with statistics of the batch:
//   gain / deviation * (g - mean(g) - (x - mean) mean(g (x - mean)) / deviation^2)
template <typename T>
class NormGradient {
 public:
  NormGradient(const Statistics& s, std::vector<ChannelSums<T>>& parts, const T* gain, double eps)
      : NormGradient(s, constants(s, parts, gain, eps)) {}

  Vec<T> operator()(Vec<T> g, Vec<T> x, int64_t j) const {
    return at::vec::fmadd(scale_.at(j), g,
                          at::vec::fmadd(slope_.at(j), x - mean_.at(j), offset_.at(j)));
  }

  int64_t period() const { return scale_.period(); }

  std::vector<double> gain, bias;  // the gradients of the parameters

 private:
  struct Constants {
    std::vector<double> scale, slope, offset, gain, bias;
  };

  NormGradient(const Statistics& s, const Constants& c)
      : gain(c.gain), bias(c.bias), scale_(c.scale), slope_(c.slope), offset_(c.offset),
        mean_(s.mean) {}

  static Constants constants(const Statistics& s, std::vector<ChannelSums<T>>& parts,
                             const T* gain, double eps) {
    Constants all;
    const std::vector<double> inverse = s.inverse_deviation(eps);
    const double n = static_cast<double>(s.count);
    for (size_t c = 0; c < inverse.size(); ++c) {
      double sum = 0, product = 0;
      for (const ChannelSums<T>& part : parts) {
        sum += part.sum[c];
        product += part.product[c] + (part.shift[c] - s.mean[c]) * part.sum[c];
      }
      const double scale = gain[c] * inverse[c];
      all.scale.push_back(scale);
      all.slope.push_back(-scale * inverse[c] * inverse[c] * product / n);
      all.offset.push_back(-scale * sum / n);
      all.gain.push_back(product * inverse[c]);
      all.bias.push_back(sum);
    }
    return all;
  }

  Repeated<T> scale_, slope_, offset_, mean_;
};

}  // namespace
