// FP8 E4M3 (the finite kind, OCP "fn"): sign, 4 bits of exponent with bias 7, 3 of mantissa; no
// infinity, 0x7f and 0xff are NaN, the largest value is 448. Four significant bits: BF16 holds
// every value exactly.
//
// A weight is a code times a float32 scale: one for a matrix, or one for each block of rows x
// columns (128 x 128, the last blocks of a matrix may be partial).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace rota {

inline constexpr uint8_t kE4m3Nan = 0x7f;  // with either sign
inline constexpr float kE4m3Max = 448.0f;

float e4m3_to_float(uint8_t code);
Bf16 e4m3_to_bf16(uint8_t code);  // exact

constexpr bool is_e4m3_nan(uint8_t code) { return (code & 0x7f) == kE4m3Nan; }

// Nearest code, ties to even, saturating at +-448; NaN stays NaN.
uint8_t float_to_e4m3(float value);

// out = each code times the scale, rounded once to float32.
void decode_e4m3(std::span<const uint8_t> codes, float scale, std::span<float> out);

}  // namespace rota
