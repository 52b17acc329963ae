// NVFP4 (ModelOpt): blocks of 16 E2M1 codes share one E4M3 scale, and the whole matrix one float32.
//   value = e2m1(code) * e4m3(scale) * matrix scale;  8 bytes a block, the low nibble is the even
//   element.
// e2m1 * e4m3 has at most six significant bits: BF16 holds it exactly, so a kernel multiplies such
// weights and applies the matrix scale once, to the sum.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace rota {

inline constexpr int64_t kNvfp4BlockElements = 16;
inline constexpr Bytes kNvfp4BlockBytes{8};

// out [16] = the block's values without the matrix scale: exact in float32 and in BF16.
void decode_nvfp4_block(std::span<const uint8_t, 8> codes, uint8_t scale, std::span<float, 16> out);

}  // namespace rota
