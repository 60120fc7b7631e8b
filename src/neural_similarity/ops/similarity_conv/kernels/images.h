// Images stored plane by plane (NCHW), and the kernels' order, with channels last.
//
// A copy of a whole batch would leave the caches twice, and need new memory each time. So a worker
// copies a few images at a time, into memory that it keeps, and uses them immediately.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>

#include "geometry.h"
#include "transpose.h"

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

// Whether the channels of a dense tensor are planes, and not already last.
bool is_planar(const Tensor& images) {
  return images.is_contiguous() && !images.is_contiguous(at::MemoryFormat::ChannelsLast);
}

// The same images in one of the two orders. Several times as fast as ATen's copy.
Tensor in_format(const Tensor& images, at::MemoryFormat format) {
  if (images.is_contiguous(format)) {
    return images;
  }
  const bool planar = is_planar(images);
  if (!planar && !images.is_contiguous(at::MemoryFormat::ChannelsLast)) {
    return images.contiguous(format);
  }
  const Tensor copy = at::empty(images.sizes(), images.options(), format);
  const int64_t channels = images.size(1), places = images.size(2) * images.size(3);
  for_type(images.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* from = images.const_data_ptr<T>();
    T* to = copy.mutable_data_ptr<T>();
    at::parallel_for(0, images.size(0), 1, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        transpose(from + n * channels * places, planar ? channels : places,
                  planar ? places : channels, to + n * channels * places);
      }
    });
  });
  return copy;
}

// The images that one worker uses: in place, or, if they are planar, as a copy.
template <typename T>
class Images {
 public:
  explicit Images(const Tensor& tensor)
      : data_(tensor.defined() ? const_cast<T*>(tensor.const_data_ptr<T>()) : nullptr) {
    if (data_ && is_planar(tensor)) {
      channels_ = tensor.size(1), places_ = tensor.size(2) * tensor.size(3);
    }
  }

  // Both return where image 0 would lie: image n of `some` follows after n * its size.
  const T* load(Range some) {
    T* const to = place(some);
    for (int64_t n = some.begin; copies() && n < some.end; ++n) {
      transpose(data_ + n * size(), channels_, places_, to + n * size());
    }
    return to;
  }
  T* place(Range some) {
    if (!copies()) {
      return data_;
    }
    if ((some.end - some.begin) * size() > room_) {
      room_ = (some.end - some.begin) * size();
      // Three channels are read as four values, see Panel::has_fourth: one more after the last.
      memory_ = std::make_unique_for_overwrite<T[]>(room_ + 1);
    }
    return memory_.get() - some.begin * size();
  }

  // Copies what was written to the place of `some` back to the tensor.
  void store(Range some) {
    for (int64_t n = some.begin; copies() && n < some.end; ++n) {
      transpose(memory_.get() + (n - some.begin) * size(), places_, channels_, data_ + n * size());
    }
  }

 private:
  bool copies() const { return size() > 0; }
  int64_t size() const { return channels_ * places_; }

  T* data_;
  int64_t channels_ = 0, places_ = 0;  // if there are copies
  int64_t room_ = 0;
  std::unique_ptr<T[]> memory_;
};

// How many workers there are. Each has its own images, if there are enough.
int64_t workers_of(const Geometry& g) {
  return std::max<int64_t>(
      std::min<int64_t>(at::get_num_threads(), ceil_div(g.batch * g.places(), kRows)), 1);
}
bool enough_images(const Geometry& g) {
  return g.batch % workers_of(g) == 0 || g.batch >= 4 * workers_of(g);
}

// Calls f(images) for a few at a time.
template <typename T, typename F>
void for_each_few(const Geometry& g, Range images, const F& f) {
  constexpr int64_t kBytes = 512 * 1024;
  const int64_t size = std::max(g.channels * g.height * g.width, g.outputs * g.places());
  const int64_t few = std::max<int64_t>(kBytes / (size * static_cast<int64_t>(sizeof(T))), 1);
  for (int64_t n = images.begin; n < images.end; n += few) {
    f(Range{n, std::min(n + few, images.end)});
  }
}

}  // namespace
