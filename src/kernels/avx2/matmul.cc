// The AVX2 matmul's entry points: which part of it serves which weights and how many tokens.
#include "kernels/matmul.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/avx2/avx2_kernels.h"
#include "kernels/avx2/matmul_tiles.h"

namespace rota::avx2 {

int64_t column_granularity(const WeightMatrix& weights, Compute compute) {
  if (compute == Compute::kInt8) return int8_columns();
  return weights.order == WeightOrder::kInOut ? 32 : 4;  // a cache line; the rows of a tile
}

Bytes matmul_scratch_bytes(Extent) {
  return std::max({many_scratch_bytes(), in_out_scratch_bytes(), int8_scratch_bytes()});
}

void matmul(const MatmulArgs& args) {
  const WeightMatrix& weights = *args.weights;
  ROTA_DCHECK(static_cast<int64_t>(args.scratch.size()) >= matmul_scratch_bytes(weights.in).count,
              "matmul needs more scratch");
  ROTA_DCHECK(args.input.layout.kind == input_layout(weights, args.input.compute).kind,
              "the input was prepared for another weight format");
  if (args.input.tokens == 0) return;
  if (args.input.compute == Compute::kInt8) return multiply_int8(args);
  if (weights.order == WeightOrder::kInOut) return multiply_in_out(args);
  if (weights.format == WeightFormat::kFloat32) return multiply_many_floats(args);
  const bool coded = weights.format != WeightFormat::kBf16;
  const int64_t few = coded ? kFewTokensCoded : kFewTokensBf16;
  if (args.input.tokens > few) return multiply_many_words(args);
  multiply_few_words(args);
}

}  // namespace rota::avx2
