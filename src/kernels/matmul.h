// out [T, N] = x [T, K] W^T + bias: one weight matrix against many tokens, straight from the
// checkpoint's layout.
//
// Contract: an element of the result depends only on its token's x, its row of W, the formats and
// the ISA: never on how many tokens, columns or threads there are, nor on zeros that pad K. (So a
// token alone, in a batch, in any chunk of a prefill, padded or not, gets the same bits: design
// section 6.)
//
// Inputs are prepared once for each matmul input (rounded to the compute type and brought into the
// order in which the ISA's kernel reads them), then used for any number of column ranges and weight
// matrices:
//
//   InputLayout layout = kernels.input_layout(weights, compute);      // the same for equal format
//   and order kernels.prepare_input(x, rows, layout, compute, prepared);        // rows of x, or
//   all of them kernels.matmul({.weights = &w, .input = prepared, ...});          // any thread,
//   its own columns
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "tensor/dtype.h"
#include "tensor/extent.h"
#include "tensor/matrix.h"

namespace rota {

// What matmul inputs are rounded to. kFloat32: not at all. kInt8, for MXFP4 and NVFP4 alone:
// integers times a scale in blocks of 32 (int8_input.h); sums of a block are exact. Sums are in
// float32 else.
enum class Compute { kFloat32, kBf16, kInt8 };

// kFp8: E4M3 codes under float32 factors; kNvfp4: E2M1 codes under an E4M3 scale for each 16.
enum class WeightFormat { kBf16, kFloat32, kMxfp4, kFp8, kNvfp4 };
std::string_view to_string(WeightFormat format);  // "MXFP4"

// kOutIn: [N, K], a row holds the K weights of one output. kInOut: [K, N], as gpt-oss stores BF16
// experts. Quantised formats are kOutIn.
enum class WeightOrder { kOutIn, kInOut };

// float32 factors of a quantised matrix: one for each block of `rows` outputs x `columns` inputs.
// One for each row, or one for the whole matrix, is a block as wide as K. Blocks that divide K are
// a multiple of kFoldColumns wide: sums are kept apart for so many columns, then scaled and added.
struct BlockScales {
  const float* data = nullptr;  // none: every factor is 1
  int64_t stride = 0;           // floats from a row of blocks to the next
  int64_t rows = 1;
  int64_t columns = 1;
  int64_t first_row = 0;  // the matrix's first row is this row of the blocks' grid

  const float* row(int64_t n) const { return data + (first_row + n) / rows * stride; }
};
inline constexpr int64_t kFoldColumns = 128;

// A view of a weight matrix in a file or in a padded copy. Padded elements are zero (MXFP4: code 0
// under a finite scale). Rows beyond out.logical() exist up to out.padded().
struct WeightMatrix {
  WeightFormat format = WeightFormat::kBf16;
  WeightOrder order = WeightOrder::kOutIn;
  Extent out{1};  // N
  Extent in{1};   // K; MXFP4: in.padded() is a multiple of 32, NVFP4: of 16
  const std::byte* data = nullptr;
  Bytes row_stride;  // from one row of data to the next (kOutIn: N rows; kInOut: K rows)
  const uint8_t* scales = nullptr;  // MXFP4: E8M0 [N, K/32]; NVFP4: E4M3 [N, K/16]
  Bytes scale_stride;
  BlockScales factors;         // FP8, NVFP4
  const Bf16* bias = nullptr;  // [out.padded()] or none

  // Factors that change along K.
  bool folds() const { return factors.data != nullptr && factors.columns < in.logical(); }
  // What the whole sum of output n is multiplied by, before the bias is added.
  float sum_factor(int64_t n) const {
    return factors.data == nullptr || folds() ? 1.0f : *factors.row(n);
  }
  float finish(int64_t n, float sum) const {
    return sum * sum_factor(n) + (bias != nullptr ? to_float(bias[n]) : 0.0f);
  }
};

inline bool is_e2m1(WeightFormat format) {
  return format == WeightFormat::kMxfp4 || format == WeightFormat::kNvfp4;
}

// The bytes that one token's prepared input takes; a multiple of kCacheLine. `kind` belongs to the
// ISA.
struct InputLayout {
  int kind = 0;
  Bytes token_stride;
};

struct PreparedInput {
  const std::byte* data = nullptr;  // [tokens, token_stride]
  InputLayout layout;
  Compute compute = Compute::kBf16;
  int64_t tokens = 0;
};

struct MatmulArgs {
  const WeightMatrix* weights = nullptr;
  PreparedInput input;
  int64_t first_column =
      0;  // columns [first_column, end_column) of out; column_granularity() aligned starts
  int64_t end_column = 0;
  float* out = nullptr;    // out[t * out_stride + n]: token t, column n of the whole matrix
  int64_t out_stride = 0;  // elements
  std::span<std::byte>
      scratch;  // this thread's own, matmul_scratch_bytes() long, cache-line aligned
};

}  // namespace rota
