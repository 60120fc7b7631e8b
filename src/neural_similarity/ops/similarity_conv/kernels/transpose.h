// Transposed copies, in blocks of a vector's width.
#pragma once

#include <ATen/cpu/vec/vec.h>

#include <cstdint>

namespace {

// to[j * to_row + i] = from[i * from_row + j] for a matrix of `rows` and `columns`.
template <typename T>
void transpose(const T* from, int64_t from_row, int64_t rows, int64_t columns, T* to,
               int64_t to_row) {
  constexpr int width = at::vec::Vectorized<T>::size();
  const int64_t whole_rows = rows - rows % width, whole = columns - columns % width;
  for (int64_t i = 0; i < whole_rows; i += width) {
    for (int64_t j = 0; j < whole; j += width) {
      at::vec::transpose_mxn<T, width, width>(from + i * from_row + j, from_row,
                                              to + j * to_row + i, to_row);
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = i < whole_rows ? whole : 0; j < columns; ++j) {
      to[j * to_row + i] = from[i * from_row + j];
    }
  }
}

// The same for a matrix without gaps.
template <typename T>
void transpose(const T* from, int64_t rows, int64_t columns, T* to) {
  transpose(from, columns, rows, columns, to, rows);
}

}  // namespace
