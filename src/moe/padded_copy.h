// Copies a logical weight matrix into a padded one (R5): codes, block scales and bias.
//
// Contract: padded elements are zero in every format (BF16 and float32: 0; codes: 0, under scales
// and factors of 1), and so are padded biases. Rows that interleave gate and up stay interleaved,
// since padding comes after the last pair; matrices that hold gate and up one after the other must
// be split first.
//
//   WeightMatrix padded = *pad_matrix(view, Extent(5760, 6144), Extent(2880, 3072), buffers);
#pragma once

#include <vector>

#include "base/status.h"
#include "kernels/weight_matrix.h"
#include "platform/memory.h"

namespace rota {

// `view` is unpadded, out and in have its logical sizes. The copy lives in `buffers`.
Result<WeightMatrix> pad_matrix(const WeightMatrix& view, Extent out, Extent in,
                                std::vector<Buffer>& buffers);

}  // namespace rota
