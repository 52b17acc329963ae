// The AVX-512 matmul with the BF16 dot product, for Compute::kBf16; kInt8 uses the 8-bit dot
// product, kFloat32 goes to matmul.cc. The instruction takes subnormals as zero, so of MXFP4 blocks
// with scale bytes 0 and 1 the smallest codes vanish here.
#include "base/check.h"
#include "kernels/avx512/avx512_kernels.h"
#include "kernels/avx512/input_kind.h"
#include "kernels/avx512/matmul_in_out.h"
#include "kernels/avx512/matmul_loops.h"

namespace rota::ROTA_AVX512 {
namespace {

bool uses_dot(const WeightMatrix& weights, Compute compute) {
  return compute == Compute::kBf16 && weights.format != WeightFormat::kFloat32;
}

}  // namespace

InputLayout input_layout_bf16(const WeightMatrix& weights, Compute compute) {
  if (!uses_dot(weights, compute)) return input_layout(weights, compute);
  return layout_of(is_e2m1(weights.format) ? kWordsE2m1 : kWordsInOrder, weights.in);
}

void matmul_bf16(const MatmulArgs& args) {
  const WeightMatrix& weights = *args.weights;
#ifndef ROTA_COMPILING_EMULATED_AVX512
  if (args.input.compute == Compute::kInt8) return matmul_int8_vnni(args);
#endif
  if (!uses_dot(weights, args.input.compute)) return matmul(args);
  ROTA_DCHECK(args.input.layout.kind == input_layout_bf16(weights, args.input.compute).kind,
              "the input was prepared for another weight format");
  if (weights.order == WeightOrder::kInOut) return multiply_in_out<Bf16Columns>(args);
  multiply_words<Bf16Dot>(args);
}

}  // namespace rota::ROTA_AVX512
