// The sixteen E2M1 values under every E8M0 scale, as BF16 bits: what the MXFP4 kernels look codes
// up in. E2M1 has two significant bits and BF16 has float32's exponents, so every value is exact;
// scale bytes 253 and 254 overflow to infinity where float32 does, 255 gives NaN, as the tables of
// quant/mxfp4.h do.
#pragma once

#include <array>
#include <cstdint>

namespace rota {

// For byte shuffles: the low and the high bytes of the 16 values, twice: one plain load fills both
// lanes of a vector (measured: a broadcast of 16 bytes costs as much as a shuffle). 16 KiB in all.
struct alignas(64) Mxfp4ByteRow {
  std::array<uint8_t, 32> low;
  std::array<uint8_t, 32> high;
};
extern const std::array<Mxfp4ByteRow, 256> kMxfp4ByteTable;

// For word permutes of 32 entries: the 16 values twice, so that bit 4 of an index does not matter.
struct alignas(64) Mxfp4WordRow {
  std::array<uint16_t, 32> value;
};
extern const std::array<Mxfp4WordRow, 256> kMxfp4WordTable;

}  // namespace rota
