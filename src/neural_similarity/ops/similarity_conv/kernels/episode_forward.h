// Forward through a layer of an episode: convolution, shift, max pooling and ReLU of one image.
//
// Two rows of the map at a time are computed in registers, and pooled before they leave the
// first-level cache.
#pragma once

#include <type_traits>

#include "episode_layer.h"

namespace {

// R neighbouring positions of a row of the map, and a tile of columns. The number of channels and
// the length of a kernel's row are integers, or, for colour images, constants, which let the
// compiler unroll the loops.
template <typename T, int R, typename Channels, typename Run>
inline void conv_tile(const EpisodeLayer& g, Channels channels, Run run, const T* x,
                      const T* kernel, T* out) {
  constexpr int width = Vec<T>::size();
  Vec<T> sum[R][2];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    sum[r][0] = sum[r][1] = Vec<T>(T(0));
  }
  // One loop over all rows: the compiler would not keep the sums of two nested ones in registers.
  const int64_t skipped = g.row() - run;
  int64_t end = run;
  for (int64_t j = 0; j < g.kernel_h * run; ++j, ++x, kernel += 2 * width) {
    if (j == end) {
      end += run;
      x += skipped;
    }
    const Vec<T> left = Vec<T>::loadu(kernel), right = Vec<T>::loadu(kernel + width);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const Vec<T> element(x[r * channels]);
      sum[r][0] = at::vec::fmadd(element, left, sum[r][0]);
      sum[r][1] = at::vec::fmadd(element, right, sum[r][1]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    sum[r][0].store(out + r * kColumns<T>);
    sum[r][1].store(out + r * kColumns<T> + width);
  }
}

template <typename T, int R>
void conv_tiles(const EpisodeLayer& g, int64_t count, const T* x, const T* kernel, T* out) {
  if constexpr (R > 0) {
    if (count < R) {
      conv_tiles<T, R - 1>(g, count, x, kernel, out);
    } else if (g.channels == 3 && g.kernel_w == 3) {
      conv_tile<T, R>(g, std::integral_constant<int64_t, 3>(),
                      std::integral_constant<int64_t, 9>(), x, kernel, out);
    } else {
      conv_tile<T, R>(g, g.channels, g.run(), x, kernel, out);
    }
  }
}

// `count` positions of a row, in tiles of almost equal length.
template <typename T>
void conv_row(const EpisodeLayer& g, int64_t count, const T* x, const T* kernel, T* out) {
  const int64_t tiles = ceil_div(count, kRows);
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t begin = count * i / tiles, end = count * (i + 1) / tiles;
    conv_tiles<T, kRows>(g, end - begin, x + begin * g.channels, kernel, out + begin * kColumns<T>);
  }
}

// Shift, pooling (the first of equal elements wins, as in PyTorch) and ReLU of a row of windows.
// A route is the place of an element in its window, or kNowhere if the ReLU is zero.
template <typename T>
void finish_row(const EpisodeLayer& g, const T* rows, const T* shift, int64_t columns, T* out,
                Route<T>* route) {
  constexpr int width = Vec<T>::size();
  const int64_t next = g.out_w * g.window * kColumns<T>;
  for (int64_t q = 0; q < g.out_w; ++q, out += g.outputs, route += g.outputs) {
    for (int64_t v = 0; v < columns; v += width) {
      const T* from = rows + q * g.window * kColumns<T> + v;
      Vec<T> best = Vec<T>::loadu(from), place(T(0));
      if (g.window == 2) {
        const T* others[] = {from + kColumns<T>, from + next, from + next + kColumns<T>};
#pragma GCC unroll 3
        for (int i = 0; i < 3; ++i) {
          const Vec<T> other = Vec<T>::loadu(others[i]);
          place = Vec<T>::blendv(place, Vec<T>(T(i + 1)), other > best);
          best = at::vec::maximum(best, other);  // keeps NaN
        }
      }
      const Vec<T> zero(T(0)), value = best + Vec<T>::loadu(shift + v);
      const Vec<T> result = at::vec::maximum(value, zero);
      const auto places = at::vec::convert_to_int_of_same_size(
          Vec<T>::blendv(place, Vec<T>(T(kNowhere)), value <= zero));
      const int count = static_cast<int>(std::min<int64_t>(width, columns - v));
      result.store(out + v, count);
      places.store(route + v, count);
    }
  }
}

// One image, from a padded input to `out`, whose rows are out_row apart. `rows` is memory for two
// rows of the map.
template <typename T>
void forward_image(const EpisodeLayer& g, const T* padded, const T* kernel, const T* shift,
                   T* rows, T* out, int64_t out_row, Route<T>* route) {
  const int64_t count = g.out_w * g.window, tile_size = g.kernel_size() * kColumns<T>;
  for (int64_t o = 0; o < g.outputs; o += kColumns<T>, kernel += tile_size) {
    for (int64_t p = 0; p < g.out_h; ++p) {
      for (int64_t i = 0; i < g.window; ++i) {
        conv_row(g, count, padded + (p * g.window + i) * g.row(), kernel,
                 rows + i * count * kColumns<T>);
      }
      finish_row(g, rows, shift + o, std::min(kColumns<T>, g.outputs - o), out + p * out_row + o,
                 route + p * g.out_w * g.outputs + o);
    }
  }
}

}  // namespace
