// Forward through a pooled 3 x 3 layer by Winograd's minimal filtering, F(2 x 2, 3 x 3).
//
// (Lavin and Gray, 2016, "Fast Algorithms for Convolutional Neural Networks".)  A window of the
// pooling is a tile: 16 products for each pair of channels, where the convolution has 36.
#pragma once

#include "episode_forward.h"

namespace {

constexpr int64_t kFrequencies = 16;

bool worth_winograd(const EpisodeLayer& g, int64_t width) {
  return g.kernel_h == 3 && g.kernel_w == 3 && g.window == 2 && g.out_w >= 4 &&
      g.channels >= 16 && g.channels % width == 0;
}

// Rows of windows that are transformed together: enough to reuse the kernels' registers.
int64_t winograd_rows(const EpisodeLayer& g) {
  return std::min(g.out_h, ceil_div(8, g.out_w));
}

// f = a transform of rows, then of columns, of a square of vectors: `once` turns N into M elements.
template <typename T, int N, int M, typename F>
inline void transform_square(const Vec<T> (&from)[N][N], Vec<T> (&to)[M][M], const F& once) {
  Vec<T> half[M][N];
#pragma GCC unroll 4
  for (int j = 0; j < N; ++j) {
    Vec<T> column[N], result[M];
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      column[i] = from[i][j];
    }
    once(column, result);
#pragma GCC unroll 4
    for (int i = 0; i < M; ++i) {
      half[i][j] = result[i];
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < M; ++i) {
    once(half[i], to[i]);
  }
}

// columns[tile][tap][c][o] to out[tile][frequency][c][o]
template <typename T>
void winograd_kernel(const EpisodeLayer& g, const T* columns, T* out) {
  constexpr int width = Vec<T>::size();
  const int64_t block = g.channels * kColumns<T>;
  const Vec<T> half(T(0.5));
  for (int64_t o = 0; o < g.outputs; o += kColumns<T>, columns += 9 * block) {
    for (int64_t at = 0; at < block; at += width) {
      Vec<T> taps[3][3], result[4][4];
#pragma GCC unroll 9
      for (int t = 0; t < 9; ++t) {
        taps[t / 3][t % 3] = Vec<T>::loadu(columns + t * block + at);
      }
      transform_square<T, 3, 4>(taps, result, [&](const Vec<T> (&k)[3], Vec<T> (&r)[4]) {
        const Vec<T> ends = k[0] + k[2];
        r[0] = k[0], r[1] = half * (ends + k[1]), r[2] = half * (ends - k[1]), r[3] = k[2];
      });
#pragma GCC unroll 16
      for (int f = 0; f < kFrequencies; ++f) {
        result[f / 4][f % 4].store(out + f * block + at);
      }
    }
    out += kFrequencies * block;
  }
}

// One window's patch of 4 x 4 pixels to out[frequency][window][c].
template <typename T>
void winograd_patch(const EpisodeLayer& g, const T* x, int64_t frequency, T* out) {
  for (int64_t c = 0; c < g.channels; c += Vec<T>::size()) {
    Vec<T> pixels[4][4], result[4][4];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      pixels[i / 4][i % 4] = Vec<T>::loadu(x + i / 4 * g.row() + i % 4 * g.channels + c);
    }
    transform_square<T, 4, 4>(pixels, result, [](const Vec<T> (&d)[4], Vec<T> (&r)[4]) {
      r[0] = d[0] - d[2], r[1] = d[1] + d[2], r[2] = d[2] - d[1], r[3] = d[1] - d[3];
    });
#pragma GCC unroll 16
    for (int f = 0; f < kFrequencies; ++f) {
      result[f / 4][f % 4].store(out + f * frequency + c);
    }
  }
}

// products[frequency][window][o] to the two rows and columns of the map that a window pools.
template <typename T>
void winograd_window(const T* products, int64_t frequency, T* out, int64_t out_row) {
  for (int64_t v = 0; v < kColumns<T>; v += Vec<T>::size()) {
    Vec<T> square[4][4], result[2][2];
#pragma GCC unroll 16
    for (int f = 0; f < kFrequencies; ++f) {
      square[f / 4][f % 4] = Vec<T>::loadu(products + f * frequency + v);
    }
    transform_square<T, 4, 2>(square, result, [](const Vec<T> (&m)[4], Vec<T> (&r)[2]) {
      r[0] = m[0] + m[1] + m[2], r[1] = m[1] - m[2] - m[3];
    });
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      result[i / 2][i % 2].store(out + i / 2 * out_row + i % 2 * kColumns<T> + v);
    }
  }
}

// R windows at a time, in tiles of almost equal height.
template <typename T, int R>
void winograd_tile(int64_t count, Left<T> left, const T* kernel, int64_t depth, T* out) {
  if constexpr (R > 0) {
    if (count == R) {
      tile<T, R, 2>(left, kernel, kColumns<T>, depth, out, kColumns<T>, false);
    } else {
      winograd_tile<T, R - 1>(count, left, kernel, depth, out);
    }
  }
}

template <typename T>
int64_t winograd_memory(const EpisodeLayer& g) {
  return winograd_rows(g) * g.out_w * kFrequencies * (g.channels + kColumns<T>);
}

// As forward_image, with a kernel of winograd_kernel and more memory.
template <typename T>
void winograd_image(const EpisodeLayer& g, const T* padded, const T* kernel, const T* shift,
                    T* rows, T* memory, T* out, int64_t out_row, Route<T>* route) {
  const int64_t together = winograd_rows(g), next = g.out_w * g.window * kColumns<T>;
  for (int64_t first = 0; first < g.out_h; first += together) {
    const int64_t last = std::min(first + together, g.out_h), count = (last - first) * g.out_w;
    T* products = memory + kFrequencies * count * g.channels;
    for (int64_t i = 0; i < count; ++i) {
      winograd_patch(g, padded + g.patch(first + i / g.out_w, i % g.out_w, 0), count * g.channels,
                     memory + i * g.channels);
    }
    for (int64_t o = 0; o < g.outputs; o += kColumns<T>) {
      const T* from = kernel + kFrequencies * g.channels * o;
      const int64_t tiles = ceil_div(count, kRows);
      for (int64_t f = 0; f < kFrequencies; ++f, from += g.channels * kColumns<T>) {
        for (int64_t i = 0; i < tiles; ++i) {
          const int64_t begin = count * i / tiles, end = count * (i + 1) / tiles;
          winograd_tile<T, kRows>(
              end - begin, {memory + (f * count + begin) * g.channels, g.channels, 1}, from,
              g.channels, products + (f * count + begin) * kColumns<T>);
        }
      }
      for (int64_t p = first; p < last; ++p) {
        for (int64_t q = 0; q < g.out_w; ++q) {
          winograd_window(products + ((p - first) * g.out_w + q) * kColumns<T>,
                          count * kColumns<T>, rows + q * g.window * kColumns<T>, next);
        }
        finish_row(g, rows, shift + o, std::min(kColumns<T>, g.outputs - o), out + p * out_row + o,
                   route + p * g.out_w * g.outputs + o);
      }
    }
  }
}

}  // namespace
