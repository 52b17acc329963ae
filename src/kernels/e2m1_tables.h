// Tables by which kernels decode. The sixteen E2M1 values under every scale byte, as BF16 bits:
// what the MXFP4 and NVFP4 kernels look codes up in. Every value is exact: E2M1 has two significant
// bits, E4M3 four, and BF16 eight and float32's exponents. E8M0 bytes 253 and 254 overflow to
// infinity where float32 does; NaN scales (E8M0 255, E4M3 0x7f and 0xff) give NaN, as the tables of
// quant/ do.
#pragma once

#include <array>
#include <cstdint>

namespace rota {

// For byte shuffles: the low and the high bytes of the 16 values, twice: one plain load fills both
// lanes of a vector (measured: a broadcast of 16 bytes costs as much as a shuffle). 16 KiB a table.
struct alignas(64) E2m1ByteRow {
  std::array<uint8_t, 32> low;
  std::array<uint8_t, 32> high;
};
extern const std::array<E2m1ByteRow, 256> kMxfp4ByteTable;  // by E8M0 scale
extern const std::array<E2m1ByteRow, 256> kNvfp4ByteTable;  // by E4M3 scale

// For word permutes of 32 entries: the 16 values twice, so that bit 4 of an index does not matter.
struct alignas(64) E2m1WordRow {
  std::array<uint16_t, 32> value;
};
extern const std::array<E2m1WordRow, 256> kMxfp4WordTable;
extern const std::array<E2m1WordRow, 256> kNvfp4WordTable;

// The 128 magnitudes of E4M3 as BF16 bits; the last is NaN.
alignas(64) extern const std::array<uint16_t, 128> kE4m3Magnitudes;

}  // namespace rota
