// Small dense products and the loops over channels, on ATen's vector types.
#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <cstdint>

namespace {

template <typename T>
using Vec = at::vec::Vectorized<T>;

// The register tile is kRows x two vectors: its accumulators, the two vectors of the right factor
// and one broadcast element must fit the registers, of which there are 16 or 32.
#if defined(CPU_CAPABILITY_AVX512) || defined(__aarch64__)
constexpr int kRows = 12;
#else
constexpr int kRows = 6;
#endif

template <typename T>
constexpr int64_t kColumns = 2 * Vec<T>::size();

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t round_up(int64_t a, int64_t b) {
  return ceil_div(a, b) * b;
}

// The columns of a tile that must be computed if so many are left: those of one vector or of two.
template <typename T>
int64_t tile_columns(int64_t left) {
  return left > Vec<T>::size() ? kColumns<T> : Vec<T>::size();
}

// A left factor: element (r, t) is data[r * row + t * step].
template <typename T>
struct Left {
  const T* data;
  int64_t row;
  int64_t step;
};

// C[R, V vectors] (+)= A[R, depth] B[depth, V vectors], all of C held in registers.  What was in C
// is added last: the sums of blocks then lose less to rounding than one long sum would.
template <typename T, int R, int V>
inline void tile(Left<T> a, const T* b, int64_t b_row, int64_t depth, T* c, int64_t c_row,
                 bool add) {
  constexpr int width = Vec<T>::size();
  Vec<T> sum[R][V];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      sum[r][v] = Vec<T>(T(0));
    }
  }
  const T* left = a.data;
  for (int64_t t = 0; t < depth; ++t, left += a.step, b += b_row) {
    Vec<T> right[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      right[v] = Vec<T>::loadu(b + v * width);
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const Vec<T> element(left[r * a.row]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        sum[r][v] = at::vec::fmadd(element, right[v], sum[r][v]);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      T* place = c + r * c_row + v * width;
      (add ? Vec<T>::loadu(place) + sum[r][v] : sum[r][v]).store(place);
    }
  }
}

// R rows of one column tile.  A column tile cut short by the edge of C goes through a buffer, so
// that nothing is written (or, when adding, read) past the edge; B is padded and may be read.
template <typename T, int R>
inline void rows_of_tile(Left<T> a, const T* b, int64_t b_row, int64_t depth, T* c, int64_t c_row,
                         int64_t columns, bool add) {
  constexpr int width = Vec<T>::size();
  if (columns == 2 * width) {
    tile<T, R, 2>(a, b, b_row, depth, c, c_row, add);
    return;
  }
  if (columns == width) {
    tile<T, R, 1>(a, b, b_row, depth, c, c_row, add);
    return;
  }
  T edge[R * 2 * width];
  if (columns > width) {
    tile<T, R, 2>(a, b, b_row, depth, edge, 2 * width, false);
  } else {
    tile<T, R, 1>(a, b, b_row, depth, edge, 2 * width, false);
  }
  for (int r = 0; r < R; ++r) {
    for (int64_t j = 0; j < columns; ++j) {
      c[r * c_row + j] = edge[r * 2 * width + j] + (add ? c[r * c_row + j] : T(0));
    }
  }
}

// C[rows, columns] (+)= A[rows, depth] B[depth, columns] for one column tile (columns at most
// kColumns).  Rows left over from the full tiles take smaller tiles.
template <typename T>
void product(Left<T> a, int64_t rows, const T* b, int64_t b_row, int64_t depth, T* c,
             int64_t c_row, int64_t columns, bool add) {
  constexpr int kSome = 3;
  int64_t r = 0;
  const auto at_row = [&](int64_t row) { return Left<T>{a.data + row * a.row, a.row, a.step}; };
  for (; r + kRows <= rows; r += kRows) {
    rows_of_tile<T, kRows>(at_row(r), b, b_row, depth, c + r * c_row, c_row, columns, add);
  }
  for (; r + kSome <= rows; r += kSome) {
    rows_of_tile<T, kSome>(at_row(r), b, b_row, depth, c + r * c_row, c_row, columns, add);
  }
  for (; r < rows; ++r) {
    rows_of_tile<T, 1>(at_row(r), b, b_row, depth, c + r * c_row, c_row, columns, add);
  }
}

// Fewer elements than a vector of the processor has, a power of two.
template <typename T, int count>
struct Some {
  typedef T type __attribute__((vector_size(count * sizeof(T))));

  static type load(const T* from) {
    type values;
    __builtin_memcpy(&values, from, sizeof values);
    return values;
  }
  static void store(type values, T* to) { __builtin_memcpy(to, &values, sizeof values); }

  static T sum(type values) {
    if constexpr (count == 1) {
      return values[0];
    } else {
      using Half = Some<T, count / 2>;
      typename Half::type halves[2];
      __builtin_memcpy(halves, &values, sizeof values);
      return Half::sum(halves[0] + halves[1]);
    }
  }
};

// The elements of half a vector: channels of a group that are too few for a whole one.
template <typename T>
using Half = Some<T, Vec<T>::size() / 2>;

// The loops below run over the channels of a tap. Their size is an integer, or, for the few
// channels of an image, a constant, which lets the compiler unroll them.

// out[i] = scale * x[i]
template <typename T, typename Size>
inline void scaled(T* out, T scale, const T* x, Size size) {
  constexpr int width = Vec<T>::size();
  const Vec<T> factor(scale);
  int64_t i = 0;
#pragma GCC unroll 8
  for (; i + width <= size; i += width) {
    (factor * Vec<T>::loadu(x + i)).store(out + i);
  }
  if (i + width / 2 <= size) {
    Half<T>::store(scale * Half<T>::load(x + i), out + i);
    i += width / 2;
  }
  for (; i < size; ++i) {
    out[i] = scale * x[i];
  }
}

// The three channels of an image in a vector of four. The fourth element is the first one of the
// next tap: it is written too, and overwritten right after.
template <typename T>
using Three = typename Some<T, 4>::type;

template <typename T>
inline Three<T> three(const T* from) {
  return Some<T, 4>::load(from);
}

// The scale is a number, or one for each channel.
template <typename T, typename Scale>
inline void scaled_three(T* out, Scale scale, const T* x) {
  Some<T, 4>::store(three(x) * scale, out);
}

// One tap backward as in reverse_tap, from the gradient `upper` of scale * x, without that of x.
template <typename T>
inline T reverse_three(T* g, T scale, Three<T> upper, const T* x, bool replace) {
  const Three<T> product = upper * three(x);
  if (replace) {
    scaled_three(g, scale, x);
  }
  return product[0] + product[1] + product[2];
}

// out[i] += scale * x[i]
template <typename T>
inline void add_scaled(T* out, T scale, const T* x, int64_t size) {
  constexpr int width = Vec<T>::size();
  const Vec<T> factor(scale);
  int64_t i = 0;
  for (; i + width <= size; i += width) {
    at::vec::fmadd(factor, Vec<T>::loadu(x + i), Vec<T>::loadu(out + i)).store(out + i);
  }
  for (; i < size; ++i) {
    out[i] += scale * x[i];
  }
}

// out[i] += x[i]
template <typename T>
inline void add(T* out, const T* x, int64_t size) {
  constexpr int width = Vec<T>::size();
  int64_t i = 0;
  for (; i + width <= size; i += width) {
    (Vec<T>::loadu(out + i) + Vec<T>::loadu(x + i)).store(out + i);
  }
  for (; i < size; ++i) {
    out[i] += x[i];
  }
}

template <typename T>
inline T sum_of(Vec<T> lanes) {
  return at::vec::vec_reduce_all<T>([](Vec<T> p, Vec<T> q) { return p + q; }, lanes);
}

// The sums of some vectors, as many as a vector holds, a power of two: halved again and again by
// adding neighbours, in place.
template <typename T, int Count>
inline Vec<T> sums_of(Vec<T>* lanes) {
  if constexpr (Count > 1) {
#pragma GCC unroll 8
    for (int i = 0; i < Count / 2; ++i) {
      const auto [even, odd] = at::vec::deinterleave2(lanes[2 * i], lanes[2 * i + 1]);
      lanes[i] = even + odd;
    }
    return sums_of<T, Count / 2>(lanes);
  }
  return lanes[0];
}

// out[i] = a[i] * b[i], or added
template <typename T>
inline void multiply(T* out, const T* a, const T* b, int64_t size, bool add) {
  constexpr int width = Vec<T>::size();
  int64_t i = 0;
  for (; i + width <= size; i += width) {
    const Vec<T> left = Vec<T>::loadu(a + i), right = Vec<T>::loadu(b + i);
    (add ? at::vec::fmadd(left, right, Vec<T>::loadu(out + i)) : left * right).store(out + i);
  }
  for (; i < size; ++i) {
    out[i] = a[i] * b[i] + (add ? out[i] : T(0));
  }
}

// out[r, s] += sum_i a[r, i] * b[s, i] for A x B pairs of rows, which share their loads.
template <typename T, int A, int B>
inline void add_dots(T* out, int64_t out_row, const T* a, int64_t a_row, const T* b, int64_t b_row,
                     int64_t size) {
  constexpr int width = Vec<T>::size();
  Vec<T> lanes[A][B];
  for (int r = 0; r < A; ++r) {
    for (int s = 0; s < B; ++s) {
      lanes[r][s] = Vec<T>(T(0));
    }
  }
  int64_t i = 0;
  for (; i + width <= size; i += width) {
#pragma GCC unroll 3
    for (int r = 0; r < A; ++r) {
      const Vec<T> left = Vec<T>::loadu(a + r * a_row + i);
#pragma GCC unroll 3
      for (int s = 0; s < B; ++s) {
        lanes[r][s] = at::vec::fmadd(left, Vec<T>::loadu(b + s * b_row + i), lanes[r][s]);
      }
    }
  }
#pragma GCC unroll 3
  for (int r = 0; r < A; ++r) {
#pragma GCC unroll 3
    for (int s = 0; s < B; ++s) {
      T sum = size >= width ? sum_of(lanes[r][s]) : T(0);
      for (int64_t j = i; j < size; ++j) {
        sum += a[r * a_row + j] * b[s * b_row + j];
      }
      out[r * out_row + s] += sum;
    }
  }
}

// One tap backward, from the gradient g of scale * x: the gradient of the scale (returned), that of
// x (added to gx, unless null), and in the place of g, if needed, scale * x. In one loop, since all
// of it is bound by memory.
template <typename T, typename Size>
inline T reverse_tap(T* g, T scale, const T* x, T* gx, bool replace, Size size) {
  constexpr int width = Vec<T>::size();
  const Vec<T> factor(scale);
  Vec<T> lanes(T(0));
  int64_t i = 0;
#pragma GCC unroll 8
  for (; i + width <= size; i += width) {
    const Vec<T> gradient = Vec<T>::loadu(g + i), value = Vec<T>::loadu(x + i);
    lanes = at::vec::fmadd(gradient, value, lanes);
    if (gx) {
      at::vec::fmadd(factor, gradient, Vec<T>::loadu(gx + i)).store(gx + i);
    }
    if (replace) {
      (factor * value).store(g + i);
    }
  }
  T sum = size >= width ? sum_of(lanes) : T(0);
  if (i + width / 2 <= size) {
    const auto gradient = Half<T>::load(g + i), value = Half<T>::load(x + i);
    sum += Half<T>::sum(gradient * value);
    if (gx) {
      Half<T>::store(Half<T>::load(gx + i) + scale * gradient, gx + i);
    }
    if (replace) {
      Half<T>::store(scale * value, g + i);
    }
    i += width / 2;
  }
  for (; i < size; ++i) {
    const T gradient = g[i], value = x[i];
    sum += gradient * value;
    if (gx) {
      gx[i] += scale * gradient;
    }
    if (replace) {
      g[i] = scale * value;
    }
  }
  return sum;
}

// The same where every channel has its own scale, whose gradients are added to `gradient`.
template <typename T>
inline void reverse_channels(T* g, const T* scale, const T* x, T* gx, T* gradient, bool replace,
                             int64_t size) {
  constexpr int width = Vec<T>::size();
  int64_t i = 0;
  for (; i + width <= size; i += width) {
    const Vec<T> upper = Vec<T>::loadu(g + i), value = Vec<T>::loadu(x + i);
    const Vec<T> factor = Vec<T>::loadu(scale + i);
    at::vec::fmadd(upper, value, Vec<T>::loadu(gradient + i)).store(gradient + i);
    if (gx) {
      at::vec::fmadd(factor, upper, Vec<T>::loadu(gx + i)).store(gx + i);
    }
    if (replace) {
      (factor * value).store(g + i);
    }
  }
  for (; i < size; ++i) {
    const T upper = g[i], value = x[i];
    gradient[i] += upper * value;
    if (gx) {
      gx[i] += scale[i] * upper;
    }
    if (replace) {
      g[i] = scale[i] * value;
    }
  }
}

// out[i] = scale * factors[i] * x[i]
template <typename T, typename Size>
inline void scaled_channels(T* out, T scale, const T* factors, const T* x, Size size) {
  constexpr int width = Vec<T>::size();
  const Vec<T> common(scale);
  int64_t i = 0;
#pragma GCC unroll 8
  for (; i + width <= size; i += width) {
    (common * Vec<T>::loadu(factors + i) * Vec<T>::loadu(x + i)).store(out + i);
  }
  for (; i < size; ++i) {
    out[i] = scale * factors[i] * x[i];
  }
}

// One tap backward as in reverse_tap, where channel i is multiplied by scale * factors[i]. The
// gradients of the factors are added to `gradient`.
template <typename T, typename Size>
inline T reverse_factors(T* g, T scale, const T* factors, const T* x, T* gx, T* gradient,
                         bool replace, Size size) {
  constexpr int width = Vec<T>::size();
  const Vec<T> common(scale);
  Vec<T> lanes(T(0));
  int64_t i = 0;
#pragma GCC unroll 8
  for (; i + width <= size; i += width) {
    const Vec<T> upper = Vec<T>::loadu(g + i), value = Vec<T>::loadu(x + i);
    const Vec<T> own = Vec<T>::loadu(factors + i), both = common * own;
    const Vec<T> product = upper * value;
    lanes = at::vec::fmadd(product, own, lanes);
    at::vec::fmadd(product, common, Vec<T>::loadu(gradient + i)).store(gradient + i);
    if (gx) {
      at::vec::fmadd(both, upper, Vec<T>::loadu(gx + i)).store(gx + i);
    }
    if (replace) {
      (both * value).store(g + i);
    }
  }
  T sum = size >= width ? sum_of(lanes) : T(0);
  for (; i < size; ++i) {
    const T upper = g[i], value = x[i], both = scale * factors[i], product = upper * value;
    sum += product * factors[i];
    gradient[i] += product * scale;
    if (gx) {
      gx[i] += both * upper;
    }
    if (replace) {
      g[i] = both * value;
    }
  }
  return sum;
}

}  // namespace
