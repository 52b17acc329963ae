#include "checkpoint/scan_scales.h"

#include <algorithm>
#include <string_view>

#include "quant/mxfp4.h"

namespace rota {

namespace {

std::string_view fault_of(DType dtype, uint8_t value) {
  const bool too_large = dtype == DType::kU8 && value != kE8m0Nan;
  return too_large ? "larger than BF16 can hold" : "not a number";
}

// Index of the first word whose bits under `mask` are more than `largest`. The maximum of a chunk
// is one vector instruction for many words; only a chunk that holds a bad one is looked at word by
// word.
template <typename Word>
std::optional<int64_t> find_above(std::span<const Word> words, Word largest, Word mask) {
  constexpr size_t kChunk = 4096 / sizeof(Word);
  const auto masked = [mask](Word word) { return static_cast<Word>(word & mask); };
  for (size_t begin = 0; begin < words.size(); begin += kChunk) {
    const auto chunk = words.subspan(begin, std::min(kChunk, words.size() - begin));
    Word most = 0;
    for (const Word word : chunk) most = std::max(most, masked(word));
    if (most <= largest) continue;
    const auto at =
        std::find_if(chunk.begin(), chunk.end(), [&](Word word) { return masked(word) > largest; });
    return static_cast<int64_t>(begin) + (at - chunk.begin());
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> find_byte_above(std::span<const uint8_t> bytes, ByteLimit limit) {
  return find_above(bytes, limit.largest, limit.mask);
}

std::optional<int64_t> find_not_finite(const TensorInfo& tensor) {
  // Without its sign a number's bits are less than those of infinity. Signed words: their maximum
  // is an instruction of every x86-64.
  if (tensor.dtype == DType::kBf16) {
    return find_above<int16_t>(tensor.as<int16_t>(), 0x7f7f, 0x7fff);
  }
  ROTA_CHECK(tensor.dtype == DType::kF32, "BF16 or float32");
  return find_above<int32_t>(tensor.as<int32_t>(), 0x7f7fffff, 0x7fffffff);
}

std::optional<BadByte> scan_bytes(const TensorInfo& tensor, const ByteRegion& region,
                                  ByteLimit limit) {
  const int64_t width = tensor.shape.back();
  ROTA_CHECK(tensor.shape.size() == 2 && size_of(tensor.dtype).count == 1, "bytes [N, K]");
  ROTA_CHECK(region.first_row + region.rows <= tensor.shape[0] &&
                 region.first_column + region.columns <= width &&
                 static_cast<int64_t>(tensor.bytes.size()) == tensor.byte_size,
             "a region of weights that were read");
  const auto bytes = tensor.as<uint8_t>();
  // Whole rows lie one behind the other.
  const bool whole = region.columns == width;
  const int64_t lines = whole ? 1 : region.rows;
  const int64_t length = whole ? region.rows * width : region.columns;
  for (int64_t line = 0; line < lines; ++line) {
    const int64_t begin = (region.first_row + line) * width + region.first_column;
    const auto at = find_byte_above(
        bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(length)), limit);
    if (!at) continue;
    const int64_t index = begin + *at;
    return BadByte{index / width, index % width, bytes[static_cast<size_t>(index)]};
  }
  return std::nullopt;
}

Status BadByte::status(const TensorInfo& tensor) const {
  return error(
      StatusCode::kDataLoss,
      "{}: tensor {}: row {}, column {} has the byte {:#04x} ({}); the file is damaged, get "
      "it again",
      tensor.file, tensor.name, row, column, value, fault_of(tensor.dtype, value));
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
  const auto at = find_byte_above(bytes, {.largest = largest});
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
               scales.file, scales.name, expert, row, block, value, fault_of(scales.dtype, value));
}

}  // namespace rota
