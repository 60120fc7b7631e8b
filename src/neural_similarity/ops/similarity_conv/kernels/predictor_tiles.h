// The products of the predictor's convolutions, read from padded bands of rows.
#pragma once

#include <algorithm>
#include <vector>

#include "products.h"

namespace {

// One vector of outputs leaves registers for more rows; eight keep the pointers to their windows in
// registers too.
template <int V>
constexpr int kMostRows = V == 2 ? kRows : 8;

// Windows in a band: tap t of window i begins at data + from[i] + taps[t], and channels follow.
template <typename T>
struct Windows {
  const T* data;
  const int64_t* from;
  const int64_t* taps;
  int64_t channels;

  // The end of a run: adjacent taps are read as one, in a loop long enough to pay off.
  int64_t run_end(int64_t tap, int64_t count) const {
    while (++tap < count && taps[tap] == taps[tap - 1] + channels) {
    }
    return tap;
  }
};

// Where the outputs of window i go: to + at[i].
template <typename T>
struct Places {
  T* to;
  const int64_t* at;
};

// Some columns of the outputs: whole vectors, or with no vectors one column as dot products.
struct Columns {
  int64_t first, count, vectors;
};

// An odd square kernel has one tap more than a multiple of eight: a vector for it would be wasted.
template <typename T>
std::vector<Columns> columns_of(int64_t outputs) {
  constexpr int64_t width = Vec<T>::size();
  std::vector<Columns> columns;
  for (int64_t first = 0; first < outputs;) {
    const int64_t rest = outputs - first;
    int64_t vectors = rest > width + 1 ? 2 : 1;
    if (rest == 1) {
      vectors = 0;
    }
    const int64_t count = vectors == 0 ? 1 : std::min(rest, vectors * width);
    columns.push_back({first, count, vectors});
    first += count;
  }
  return columns;
}

// Kernels by column tile: [tile][tap][channel][output in tile], zero past the last output.
template <typename T>
class TileKernels {
 public:
  template <typename Value>  // value(output, tap, channel)
  TileKernels(int64_t outputs, int64_t taps, int64_t channels, const Value& value)
      : TileKernels(outputs, taps, channels, static_cast<const T*>(nullptr)) {
    memory_.reserve(size_);
    for (const Columns& tile : columns_) {
      for (int64_t i = 0; i < taps * channels; ++i) {
        for (int64_t o = 0; o < stored(tile); ++o) {
          memory_.push_back(o < tile.count ? value(tile.first + o, i / channels, i % channels)
                                           : T(0));
        }
      }
    }
  }
  // Kernels that are in this order already, used in place.
  TileKernels(int64_t outputs, int64_t taps, int64_t channels, const T* ordered)
      : taps_(taps), size_(0), columns_(columns_of<T>(outputs)), ordered_(ordered) {
    for (const Columns& tile : columns_) {
      starts_.push_back(size_);
      size_ += stored(tile) * taps * channels;
    }
  }
  static int64_t stored(const Columns& tile) {
    return std::max<int64_t>(tile.vectors * Vec<T>::size(), 1);
  }
  int64_t taps() const { return taps_; }
  int64_t size() const { return size_; }
  const std::vector<Columns>& columns() const { return columns_; }
  const T* tile(size_t index) const {
    return (ordered_ ? ordered_ : memory_.data()) + starts_[index];
  }

 private:
  int64_t taps_, size_;
  std::vector<Columns> columns_;
  std::vector<int64_t> starts_;
  std::vector<T> memory_;
  const T* ordered_;
};

template <typename T, int R, int V>
inline void window_tile(const Windows<T>& windows, int64_t taps, const T* kernels,
                        const Places<T>& places, int64_t columns, bool add) {
  constexpr int width = Vec<T>::size();
  Vec<T> sum[R][V];
  const T* start[R];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    start[r] = windows.data + windows.from[r];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      sum[r][v] = Vec<T>(T(0));
    }
  }
  for (int64_t tap = 0, next; tap < taps; tap = next) {
    next = windows.run_end(tap, taps);
    const int64_t end = windows.taps[next - 1] + windows.channels;
    for (int64_t c = windows.taps[tap]; c < end; ++c, kernels += V * width) {
      Vec<T> right[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        right[v] = Vec<T>::loadu(kernels + v * width);
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const Vec<T> element(start[r][c]);
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
          sum[r][v] = at::vec::fmadd(element, right[v], sum[r][v]);
        }
      }
    }
  }
  // Unrolled like the loops above: a variable index would keep the sums out of registers.
  if (columns == V * width) {
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        T* to = places.to + places.at[r] + v * width;
        (add ? Vec<T>::loadu(to) + sum[r][v] : sum[r][v]).store(to);
      }
    }
    return;
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      T* to = places.to + places.at[r] + v * width;
      const int count = static_cast<int>(std::clamp<int64_t>(columns - v * width, 0, width));
      if (count > 0) {
        const Vec<T> before = add ? Vec<T>::loadu(to, count) : Vec<T>(T(0));
        (before + sum[r][v]).store(to, count);
      }
    }
  }
}

// The same for `rows` of at most R windows.
template <typename T, int V, int R = kMostRows<V>>
void window_rows(int64_t rows, const Windows<T>& windows, int64_t taps, const T* kernels,
                 const Places<T>& places, int64_t columns, bool add) {
  if constexpr (R > 1) {
    if (rows < R) {
      window_rows<T, V, R - 1>(rows, windows, taps, kernels, places, columns, add);
      return;
    }
  }
  window_tile<T, R, V>(windows, taps, kernels, places, columns, add);
}

// One output of some windows: dot products over the channels.
template <typename T, int R>
void window_dots(const Windows<T>& windows, int64_t taps, const T* kernels,
                 const Places<T>& places, bool add) {
  constexpr int width = Vec<T>::size();
  Vec<T> lanes[R];
  T sums[R];
  const T* start[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    start[r] = windows.data + windows.from[r];
    lanes[r] = Vec<T>(T(0));
    sums[r] = add ? places.to[places.at[r]] : T(0);
  }
  for (int64_t tap = 0, next; tap < taps; tap = next) {
    next = windows.run_end(tap, taps);
    const int64_t first = windows.taps[tap], channels = (next - tap) * windows.channels;
    int64_t c = 0;
    for (; c + width <= channels; c += width) {
      const Vec<T> right = Vec<T>::loadu(kernels + c);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        lanes[r] = at::vec::fmadd(Vec<T>::loadu(start[r] + first + c), right, lanes[r]);
      }
    }
    for (; c < channels; ++c) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        sums[r] += start[r][first + c] * kernels[c];
      }
    }
    kernels += channels;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    places.to[places.at[r]] = sums[r] + sum_of(lanes[r]);
  }
}

// Convolve `count` windows. Taps are taken a few at a time, so that the kernels of a tile stay in
// the first-level cache; the sums of the blocks are added up in the output.
template <typename T>
void convolve(const Windows<T>& windows, int64_t count, const TileKernels<T>& kernels,
              const Places<T>& places, bool add) {
  constexpr int64_t kKernelBytes = 20 * 1024, kDots = 8;
  for (size_t i = 0; i < kernels.columns().size(); ++i) {
    const Columns& tile = kernels.columns()[i];
    const int64_t tap_size = windows.channels * TileKernels<T>::stored(tile);
    const int64_t bytes = std::max<int64_t>(tap_size * static_cast<int64_t>(sizeof(T)), 1);
    const int64_t step = std::max<int64_t>(kKernelBytes / bytes, 1);
    const int64_t most =
        tile.vectors == 0 ? kDots : tile.vectors == 1 ? kMostRows<1> : kMostRows<2>;
    const int64_t cuts = ceil_div(count, most);
    for (int64_t tap = 0; tap < kernels.taps(); tap += step) {
      const int64_t taps = std::min(step, kernels.taps() - tap);
      const T* kernel = kernels.tile(i) + tap * tap_size;
      for (int64_t cut = 0; cut < cuts; ++cut) {
        const int64_t begin = count * cut / cuts, rows = count * (cut + 1) / cuts - begin;
        const Windows<T> some{windows.data, windows.from + begin, windows.taps + tap,
                              windows.channels};
        const Places<T> to{places.to + tile.first, places.at + begin};
        const bool more = add || tap > 0;
        if (tile.vectors == 2) {
          window_rows<T, 2>(rows, some, taps, kernel, to, tile.count, more);
        } else if (tile.vectors == 1) {
          window_rows<T, 1>(rows, some, taps, kernel, to, tile.count, more);
        } else if (rows == kDots) {
          window_dots<T, kDots>(some, taps, kernel, to, more);
        } else {
          for (int64_t r = 0; r < rows; ++r) {
            window_dots<T, 1>({some.data, some.from + r, some.taps, some.channels}, taps, kernel,
                              {to.to, to.at + r}, more);
          }
        }
      }
    }
  }
}

// Positions of a band, row by row.
template <typename T>
struct Grid {
  const T* data;
  int64_t row, column;  // strides
};

// sums[R, V vectors] += sum over the positions of left[., r] right[., v]
template <typename T, int R, int V>
inline void correlate_tile(Grid<T> left, Grid<T> right, int64_t rows, int64_t columns, T* sums,
                           int64_t sums_row) {
  constexpr int width = Vec<T>::size();
  Vec<T> sum[R][V];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      sum[r][v] = Vec<T>::loadu(sums + r * sums_row + v * width);
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    const T* a = left.data + i * left.row;
    const T* b = right.data + i * right.row;
    for (int64_t j = 0; j < columns; ++j, a += left.column, b += right.column) {
      Vec<T> factor[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        factor[v] = Vec<T>::loadu(b + v * width);
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const Vec<T> element(a[r]);
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
          sum[r][v] = at::vec::fmadd(element, factor[v], sum[r][v]);
        }
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      sum[r][v].store(sums + r * sums_row + v * width);
    }
  }
}

// Rows of a tile: its elements need no separate pointers.
template <int V>
constexpr int kSumRows = V == 2 ? kRows : 12;

template <typename T, int V, int R = kSumRows<V>>
void correlate_rows(int64_t count, Grid<T> left, Grid<T> right, int64_t rows, int64_t columns,
                    T* sums, int64_t sums_row) {
  if constexpr (R > 1) {
    if (count < R) {
      correlate_rows<T, V, R - 1>(count, left, right, rows, columns, sums, sums_row);
      return;
    }
  }
  correlate_tile<T, R, V>(left, right, rows, columns, sums, sums_row);
}

// sums[l, r] += sum over rows x columns positions of left[., l] right[., r]. Rows of sums have
// round_up(rights, width) elements; the right side is read that far too.
template <typename T>
void correlate(Grid<T> left, int64_t lefts, Grid<T> right, int64_t rights, int64_t rows,
               int64_t columns, T* sums) {
  constexpr int64_t width = Vec<T>::size();
  const int64_t sums_row = round_up(rights, width);
  for (int64_t r = 0; r < rights;) {
    const bool pair = rights - r > width;
    const int64_t cuts = ceil_div(lefts, pair ? kSumRows<2> : kSumRows<1>);
    for (int64_t cut = 0; cut < cuts; ++cut) {
      const int64_t begin = lefts * cut / cuts, count = lefts * (cut + 1) / cuts - begin;
      const Grid<T> from{left.data + begin, left.row, left.column};
      const Grid<T> with{right.data + r, right.row, right.column};
      T* to = sums + begin * sums_row + r;
      if (pair) {
        correlate_rows<T, 2>(count, from, with, rows, columns, to, sums_row);
      } else {
        correlate_rows<T, 1>(count, from, with, rows, columns, to, sums_row);
      }
    }
    r += pair ? 2 * width : width;
  }
}

}  // namespace
