// Element types as checkpoints store them. Elements and bytes are counted in different types: a
// sub-byte or block format makes "how many" and "how long" different questions (MXFP4: 32 elements,
// 16 bytes).
#pragma once

#include <bit>
#include <compare>
#include <cstdint>
#include <optional>
#include <string_view>

namespace rota {

struct Bytes {
  int64_t count = 0;
  constexpr auto operator<=>(const Bytes&) const = default;
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return {a.count + b.count}; }
  friend constexpr Bytes operator*(Bytes a, int64_t times) { return {a.count * times}; }
};

enum class DType {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64
};

Bytes size_of(DType dtype);               // of one element
std::string_view to_string(DType dtype);  // safetensors' name: "BF16"
std::optional<DType> parse_dtype(std::string_view safetensors_name);

// A BF16 value as it lies in memory. Arithmetic is done in float.
struct Bf16 {
  uint16_t bits = 0;
};
constexpr float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
// Rounds to nearest even; NaN stays NaN.
constexpr Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

}  // namespace rota
