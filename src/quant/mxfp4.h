// MXFP4 (OCP microscaling): blocks of 32 E2M1 codes share one E8M0 scale byte.
//   value = e2m1(code) * 2^(scale - 127);  16 bytes a block, the low nibble is the even element.
// Scale byte 255 is NaN. A BF16 weight holds every value of scale bytes 2..252 exactly; 0 and 1
// make subnormals (the BF16 dot product takes them for zero), 253 and 254 overflow (refused in BF16
// mode).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace rota {

inline constexpr int64_t kMxfp4BlockElements = 32;
inline constexpr Bytes kMxfp4BlockBytes{16};
inline constexpr uint8_t kE8m0Nan = 255;
inline constexpr uint8_t kMxfp4MaxBf16Scale = 252;

extern const std::array<float, 16> kE2m1Values;  // 0 .5 1 1.5 2 3 4 6, then their negatives

float e8m0_to_float(uint8_t scale);  // 2^(scale - 127); NaN for 255; the subnormal 2^-127 for 0

// out [32] = the block's values.
void decode_mxfp4_block(std::span<const uint8_t, 16> codes, uint8_t scale,
                        std::span<float, 32> out);

// Nearest codes of values [32] under a given scale; ties to even codes, saturating at +-6 * scale.
void encode_mxfp4_block(std::span<const float, 32> values, uint8_t scale,
                        std::span<uint8_t, 16> out);

}  // namespace rota
