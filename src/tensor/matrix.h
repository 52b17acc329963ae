// Rows of elements, seen (MatrixView) or owned (Matrix). A row has three widths (R2):
//
//   |<-- logical: means something -->|<-- tail: up to padded, may be computed on -->|<-- up to
//   stride -->|
//
// What lies in the tail is part of the type. Tail::kZero is a guarantee that only an allocation or
// zero_tails() can make; every interior sub-view is Tail::kUnspecified. A kernel that computes over
// padded columns of its input asks for a Tail::kZero view, and passing any other one does not
// compile.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "platform/memory.h"
#include "tensor/extent.h"

namespace rota {

enum class Tail { kUnspecified, kZero };

template <typename T>
class Matrix;
template <typename T, Tail kTail>
class MatrixView;
template <typename T>
MatrixView<T, Tail::kZero> zero_tails(MatrixView<T, Tail::kUnspecified> view);

template <typename T, Tail kTail = Tail::kUnspecified>
class MatrixView {
 public:
  // Anyone may say "unspecified"; kZero comes from Matrix or zero_tails().
  MatrixView(T* data, int64_t rows, Extent width, int64_t stride)
    requires(kTail == Tail::kUnspecified)
      : MatrixView(Trusted{}, data, rows, width, stride) {}

  // A weaker promise, or a promise not to write, is always fine.
  template <typename U, Tail kOther>
    requires(std::is_same_v<T, U> || std::is_same_v<T, const U>) &&
            (kTail == Tail::kUnspecified || kOther == Tail::kZero)
  MatrixView(MatrixView<U, kOther> other)
      : MatrixView(Trusted{}, other.data(), other.rows(), other.width(), other.stride()) {}

  T* data() const { return data_; }
  int64_t rows() const { return rows_; }
  Extent width() const { return width_; }
  int64_t stride() const { return stride_; }

  std::span<T> row(int64_t index) const { return {pointer(index), size(width_.logical())}; }
  std::span<T> padded_row(int64_t index) const { return {pointer(index), size(width_.padded())}; }

  // The same columns of rows [first, first + count).
  MatrixView row_range(int64_t first, int64_t count) const {
    ROTA_DCHECK(0 <= first && 0 <= count && first + count <= rows_, "rows out of range");
    return MatrixView(Trusted{}, data_ + first * stride_, count, width_, stride_);
  }
  // Columns [first, first + width) of all rows: what follows them is not a tail any more.
  MatrixView<T, Tail::kUnspecified> column_range(int64_t first, Extent width) const {
    ROTA_DCHECK(0 <= first && first + width.padded() <= stride_, "columns out of range");
    return MatrixView<T, Tail::kUnspecified>(data_ + first, rows_, width, stride_);
  }
  // The logical columns alone: the truncation point of a WidthPlan.
  MatrixView<T, Tail::kUnspecified> truncated() const {
    return MatrixView<T, Tail::kUnspecified>(data_, rows_, Extent(width_.logical()), stride_);
  }

 private:
  struct Trusted {};
  MatrixView(Trusted, T* data, int64_t rows, Extent width, int64_t stride)
      : data_(data), rows_(rows), width_(width), stride_(stride) {
    ROTA_DCHECK(rows >= 0 && width.padded() <= stride, "a row needs padded <= stride");
  }
  static size_t size(int64_t count) { return static_cast<size_t>(count); }
  T* pointer(int64_t index) const {
    ROTA_DCHECK(0 <= index && index < rows_, "row out of range");
    return data_ + index * stride_;
  }

  T* data_;
  int64_t rows_;
  Extent width_;
  int64_t stride_;

  template <typename U, Tail kOther>
  friend class MatrixView;
  template <typename U>
  friend class Matrix;
  template <typename U>
  friend MatrixView<U, Tail::kZero> zero_tails(MatrixView<U, Tail::kUnspecified>);
};

// Writes zeros between logical and padded of every row, and returns the view that says so.
template <typename T>
MatrixView<T, Tail::kZero> zero_tails(MatrixView<T, Tail::kUnspecified> view) {
  const Extent width = view.width();
  const auto tail = static_cast<size_t>(width.padded() - width.logical()) * sizeof(T);
  for (int64_t r = 0; tail != 0 && r < view.rows(); ++r) {
    std::memset(static_cast<void*>(view.row(r).data() + width.logical()), 0, tail);
  }
  using Zeroed = MatrixView<T, Tail::kZero>;
  return Zeroed(typename Zeroed::Trusted{}, view.data(), view.rows(), width, view.stride());
}

// In ROTA_POISON builds: NaN into everything past logical, so that a consumer of an unspecified
// tail shows. Nothing otherwise.
inline void poison_tails([[maybe_unused]] MatrixView<float> view) {
#ifdef ROTA_POISON
  for (int64_t r = 0; r < view.rows(); ++r) {
    float* row = view.row(r).data();
    std::fill(row + view.width().logical(), row + view.stride(),
              std::numeric_limits<float>::quiet_NaN());
  }
#endif
}

// An owned matrix whose rows start on cache lines. Allocated zero, tails included.
template <typename T>
class Matrix {
 public:
  Matrix() = default;
  static Result<Matrix> allocate(int64_t rows, Extent width) {
    const int64_t per_line = static_cast<int64_t>(kCacheLine / sizeof(T));
    const int64_t stride = round_up(width.padded(), per_line);
    ROTA_ASSIGN_OR_RETURN(
        Buffer buffer,
        Buffer::allocate(static_cast<size_t>(rows * stride) * sizeof(T), Fill::kZero));
    return Matrix(std::move(buffer), rows, width, stride);
  }

  int64_t rows() const { return rows_; }
  Extent width() const { return width_; }

  // All rows, to write: whoever writes past logical owes zero_tails() to those who need kZero.
  MatrixView<T> view() const { return MatrixView<T>(data(), rows_, width_, stride_); }
  MatrixView<T> rows_view(int64_t count) const { return view().row_range(0, count); }
  // All rows with the zero tails of the allocation: for an owner who writes logical columns only.
  MatrixView<T, Tail::kZero> zero_tailed() const {
    using Zeroed = MatrixView<T, Tail::kZero>;
    return Zeroed(typename Zeroed::Trusted{}, data(), rows_, width_, stride_);
  }

 private:
  Matrix(Buffer buffer, int64_t rows, Extent width, int64_t stride)
      : buffer_(std::move(buffer)), rows_(rows), width_(width), stride_(stride) {}
  T* data() const { return reinterpret_cast<T*>(buffer_.data()); }

  Buffer buffer_;
  int64_t rows_ = 0;
  Extent width_{1};
  int64_t stride_ = 1;
};

}  // namespace rota
