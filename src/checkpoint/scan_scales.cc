#include "checkpoint/scan_scales.h"

#include <algorithm>

namespace rota {

std::optional<int64_t> find_scale_above(std::span<const uint8_t> scales, uint8_t largest) {
  // The maximum of a chunk is one vector instruction for 32 bytes; only a chunk that holds a bad
  // byte is looked at byte by byte.
  constexpr size_t kChunk = 4096;
  for (size_t begin = 0; begin < scales.size(); begin += kChunk) {
    const auto chunk = scales.subspan(begin, std::min(kChunk, scales.size() - begin));
    uint8_t most = 0;
    for (const uint8_t scale : chunk) most = std::max(most, scale);
    if (most <= largest) continue;
    const auto at = std::find_if(chunk.begin(), chunk.end(),
                                 [largest](uint8_t scale) { return scale > largest; });
    return static_cast<int64_t>(begin) + (at - chunk.begin());
  }
  return std::nullopt;
}

std::optional<BadScale> scan_mxfp4_scales(const TensorInfo& scales, uint8_t largest,
                                          int64_t expert) {
  ROTA_CHECK(scales.shape.size() == 3 && size_of(scales.dtype).count == 1, "scales [E, N, K/32]");
  const int64_t blocks = scales.shape[2];
  const int64_t one = scales.shape[1] * blocks;
  ROTA_CHECK(0 <= expert && expert < scales.shape[0] &&
                 static_cast<int64_t>(scales.bytes.size()) == scales.byte_size,
             "an expert of weights that were read");
  const auto bytes =
      scales.as<uint8_t>().subspan(static_cast<size_t>(expert * one), static_cast<size_t>(one));
  const auto at = find_scale_above(bytes, largest);
  if (!at) return std::nullopt;
  return BadScale{expert, *at / blocks, *at % blocks, bytes[static_cast<size_t>(*at)]};
}

std::optional<BadScale> scan_mxfp4_scales(const TensorInfo& scales, uint8_t largest) {
  for (int64_t expert = 0; expert < scales.shape[0]; ++expert) {
    if (auto bad = scan_mxfp4_scales(scales, largest, expert)) return bad;
  }
  return std::nullopt;
}

Status BadScale::status(const TensorInfo& scales) const {
  return error(StatusCode::kDataLoss,
               "{}: tensor {}: expert {}, row {}, block {} has the scale byte {} ({}); the file is "
               "damaged, get it again",
               scales.file, scales.name, expert, row, block, value,
               value == 255 ? "not a number" : "larger than BF16 can hold");
}

}  // namespace rota
