// The AVX-512 matmul with 8-bit inputs and the 8-bit dot product. Not compiled for the emulation.
#include "kernels/avx512/avx512_kernels.h"
#include "kernels/avx512/int8_lanes.h"
#include "kernels/lanes/matmul_int8.h"

namespace rota::ROTA_AVX512 {

void matmul_int8_vnni(const MatmulArgs& args) { lanes::multiply_int8<Int8VnniLanes>(args); }

}  // namespace rota::ROTA_AVX512
