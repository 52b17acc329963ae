// Bytes and parts of a WeightMatrix. A part is a view: nothing is copied.
//
//   WeightMatrix q = column_slice(whole, first_head * dim, heads * dim);  // of one rank
//   WeightMatrix o = input_slice(whole_o, first_head * dim, heads * dim); // its product: a share of the sum
#pragma once

#include <cstdint>

#include "kernels/matmul.h"

namespace rota {

// Bytes of `count` neighbouring elements of a row; block formats: of all blocks that they touch.
Bytes row_bytes(WeightFormat format, int64_t count);
// Of their block scales; formats without: 0.
Bytes scale_bytes(WeightFormat format, int64_t count);

// Bytes of a matrix of these widths in a format: codes and scales, and the bias where there is one;
// factors, a few numbers, are not counted.
Bytes matrix_bytes(WeightFormat format, Extent out, Extent in, bool bias);

// What one token reads of a matrix, as above: of a slice no more than is its own.
Bytes weight_bytes(const WeightMatrix& matrix);

// Outputs [first, first + count) of a matrix, as a matrix of its own.
WeightMatrix column_slice(const WeightMatrix& weights, int64_t first, int64_t count);
// Inputs [first, first + count), likewise: a view whose rows lie as far apart as those of the
// whole. The bias stays. Block formats: whole blocks, of which the last one of the matrix may be
// short; blocks of factors may also be as wide as the slice or wider.
WeightMatrix input_slice(const WeightMatrix& weights, int64_t first, int64_t count);

}  // namespace rota
