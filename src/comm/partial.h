// A sum over ranks that is still owed, and one that is paid, as different types (R6).
//
//   Partial<T>   this rank's share; anyone may say that a sum is owed
//   Reduced<T>   the sum over all ranks; only a Communicator can say so
// Shares add to shares, sums to sums. A share does not add to a sum, a sum is not reduced again,
// and a share is spent by its reduction: none of these compiles, or (a share used after std::move)
// is found by clang-tidy.
//
//   Partial<float> share(rows);                     // what this rank's heads made of the tokens
//   ROTA_ASSIGN_OR_RETURN(Reduced<float> sum, communicator.reduce(std::move(share)));
// Both are views [T, width]: the memory is the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "tensor/matrix.h"

namespace rota {

// into += what over the logical columns. Element by element: the same bits on every ISA.
template <typename T>
void add_rows(MatrixView<T> into, MatrixView<const T> what) {
  ROTA_CHECK(into.rows() == what.rows() && into.width().logical() == what.width().logical(),
             "sums of the same shape add");
  for (int64_t r = 0; r < into.rows(); ++r) {
    const std::span<T> to = into.row(r);
    const std::span<const T> from = what.row(r);
    for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  }
}

template <typename T>
class Partial {
 public:
  explicit Partial(MatrixView<T> share) : share_(share) {}
  Partial(Partial&&) noexcept = default;
  Partial& operator=(Partial&&) noexcept = default;

  Partial& operator+=(const Partial& other) {
    add_rows<T>(share_, other.share_);
    return *this;
  }

 private:
  friend class Communicator;
  MatrixView<T> share_;
};

template <typename T>
class Reduced {
 public:
  MatrixView<const T> rows() const { return rows_; }

  Reduced& operator+=(const Reduced& other) {
    add_rows<T>(rows_, other.rows_);
    return *this;
  }

 private:
  friend class Communicator;
  explicit Reduced(MatrixView<T> rows) : rows_(rows) {}
  MatrixView<T> rows_;
};

}  // namespace rota
