// Looks for bytes that no number can be made of. Block scales of MXFP4: exponent 255 is NaN, and in
// BF16 mode 253 and 254 overflow. E4M3, as NVFP4's block scales and FP8's codes: 0x7f and 0xff are
// NaN. Routers, in BF16 or float32: NaN and infinity. An expert is scanned before its first use;
// all of them in the background, or with --verify-weights before the model is ready.
//
//   if (auto bad = scan_mxfp4_scales(scales, kMxfp4MaxBf16Scale)) return bad->status(scales);
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/status.h"
#include "checkpoint/safetensors.h"

namespace rota {

// Bytes that are numbers: those whose bits under `mask` are no more than `largest`.
struct ByteLimit {
  uint8_t largest = 0xff;
  uint8_t mask = 0xff;
};
inline constexpr ByteLimit kE4m3Limit{.largest = 0x7e, .mask = 0x7f};

// Rows and columns of a tensor of bytes [N, K].
struct ByteRegion {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_column = 0;
  int64_t columns = 0;
};

struct BadByte {
  int64_t row = 0;  // of the tensor
  int64_t column = 0;
  uint8_t value = 0;

  // kDataLoss: names file, tensor, place and value.
  Status status(const TensorInfo& tensor) const;
};

struct BadScale {
  int64_t expert = 0;
  int64_t row = 0;
  int64_t block = 0;
  uint8_t value = 0;

  // kDataLoss: names file, tensor, place and value.
  Status status(const TensorInfo& scales) const;
};

// Index of the first byte that is no number; nothing if there is none. About 10 GB/s.
std::optional<int64_t> find_byte_above(std::span<const uint8_t> bytes, ByteLimit limit);

// Index of the first element of a BF16 or float32 tensor that is NaN or infinite.
std::optional<int64_t> find_not_finite(const TensorInfo& tensor);

// tensor: bytes [N, K] of one expert alone. Reads no byte outside the region.
std::optional<BadByte> scan_bytes(const TensorInfo& tensor, const ByteRegion& region,
                                  ByteLimit limit);

// scales: U8 [E, N, K/32]. The first bad scale of all experts, or of one.
std::optional<BadScale> scan_mxfp4_scales(const TensorInfo& scales, uint8_t largest);
std::optional<BadScale> scan_mxfp4_scales(const TensorInfo& scales, uint8_t largest,
                                          int64_t expert);

}  // namespace rota
