// The AVX-512 matmul with 8-bit inputs, for CPUs without the 8-bit dot product.
#include "kernels/lanes/matmul_int8.h"

#include "kernels/avx512/avx512_kernels.h"
#include "kernels/avx512/int8_lanes.h"

namespace rota::ROTA_AVX512 {

InputLayout int8_input_layout(const WeightMatrix& weights) { return int8_layout(weights); }

PreparedInput prepare_int8_input(MatrixView<const float> x, std::span<const int32_t> rows,
                                 Extent in, InputLayout layout, std::byte* prepared) {
  return prepare_int8(x, rows, in, layout, prepared);
}

int64_t int8_columns() { return lanes::int8_column_granularity<Int8Lanes>(); }
int64_t int8_scratch() { return lanes::int8_scratch_bytes<Int8Lanes>(); }
void matmul_int8(const MatmulArgs& args) { lanes::multiply_int8<Int8Lanes>(args); }

}  // namespace rota::ROTA_AVX512
