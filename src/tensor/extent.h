// A width has two numbers (R1). Any width that a backend or a transport may round up travels as an
// Extent:
//   logical  elements that mean something
//   padded   elements that may be computed on, >= logical
// so that "which width is meant" is written down wherever a width is used.
//
//   Extent hidden = Extent::rounded_up(2880, 256);   // {2880, 3072}
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "base/check.h"

namespace rota {

// The one rounding function. alignment >= 1; 0 is not an alignment.
constexpr int64_t round_up(int64_t count, int64_t alignment) {
  return (count + alignment - 1) / alignment * alignment;
}

class Extent {
 public:
  // Unpadded.
  explicit constexpr Extent(int64_t logical) : Extent(logical, logical) {}
  constexpr Extent(int64_t logical, int64_t padded) : logical_(logical), padded_(padded) {
    ROTA_CHECK(1 <= logical && logical <= padded, "an extent needs 1 <= logical <= padded");
  }
  static constexpr Extent rounded_up(int64_t logical, int64_t alignment) {
    return Extent(logical, round_up(logical, alignment));
  }

  constexpr int64_t logical() const { return logical_; }
  constexpr int64_t padded() const { return padded_; }
  constexpr bool is_padded() const { return padded_ != logical_; }
  constexpr bool operator==(const Extent&) const = default;

 private:
  int64_t logical_;
  int64_t padded_;
};

std::string to_string(Extent extent);  // "2880" or "2880 -> 3072"

}  // namespace rota
