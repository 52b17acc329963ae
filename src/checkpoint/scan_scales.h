// Looks for block scales that no number can be made of: MXFP4 exponent 255 is NaN, and in BF16 mode
// 253 and 254 overflow. An expert is scanned before its first use; all of them in the
// background, or with --verify-weights before the model is ready.
//
//   if (auto bad = scan_mxfp4_scales(scales, kMxfp4MaxBf16Scale)) return bad->status(scales);
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/status.h"
#include "checkpoint/safetensors.h"

namespace rota {

struct BadScale {
  int64_t expert = 0;
  int64_t row = 0;
  int64_t block = 0;
  uint8_t value = 0;

  // kDataLoss: names file, tensor, place and value.
  Status status(const TensorInfo& scales) const;
};

// Index of the first byte greater than `largest`; nothing if there is none. About 10 GB/s.
std::optional<int64_t> find_scale_above(std::span<const uint8_t> scales, uint8_t largest);

// scales: U8 [E, N, K/32]. The first bad scale of all experts, or of one.
std::optional<BadScale> scan_mxfp4_scales(const TensorInfo& scales, uint8_t largest);
std::optional<BadScale> scan_mxfp4_scales(const TensorInfo& scales, uint8_t largest,
                                          int64_t expert);

}  // namespace rota
