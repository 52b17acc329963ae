// Matmul inputs in 8 bits, Compute::kInt8: what the kernels of every instruction set read. Blocks
// of 32 elements of K; scale = max |x| / 127 and q = x / scale, rounded to nearest even, in [-127,
// 127]. A block that holds a NaN or an infinity is NaN as a whole; zeros fill up the last block.
//
// Prepared, a block is a piece for each scale of its weights (MXFP4: one of 32 elements, NVFP4: two
// of 16): an Int8Head, then q in the order in which the codes' nibbles come out of four bytes:
// elements 0 2 4 6 from the low ones, 1 3 5 7 from the high ones, then 8 10 12 14 and so on.
//
// Included by the sources of each ISA; everything is internal to each of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "base/check.h"
#include "kernels/coded_rows.h"
#include "kernels/matmul.h"
#include "platform/memory.h"
#include "tensor/matrix.h"

namespace rota {
namespace {

// Weights are multiplied as twice their E2M1 value plus 12, which is unsigned: 0 to 24.
inline constexpr int kInt8WeightOffset = 12;

struct Int8Head {
  float half_scale;  // of the block; half, because weights count twice
  int32_t start;     // of the integer sum: -12 * (sum of the piece's q)
};

enum Int8Kind : int { kInt8Mxfp4 = 16, kInt8Nvfp4 = 17 };  // InputLayout::kind

// Pieces of a block, and bytes of one.
template <class Code>
struct Int8Pieces {
  static constexpr int kCount = static_cast<int>(Code::kScaleBytes);
  static constexpr int64_t kElements = kCodedBlock / kCount;
  static constexpr int64_t kBytes = static_cast<int64_t>(sizeof(Int8Head)) + kElements;
  static constexpr int64_t kBlockBytes = kBytes * kCount;
};

inline InputLayout int8_layout(const WeightMatrix& weights) {
  ROTA_DCHECK(is_e2m1(weights.format) && weights.order == WeightOrder::kOutIn,
              "only MXFP4 and NVFP4 are multiplied in 8 bits");
  const bool mxfp4 = weights.format == WeightFormat::kMxfp4;
  const int64_t block =
      mxfp4 ? Int8Pieces<Mxfp4Code>::kBlockBytes : Int8Pieces<Nvfp4Code>::kBlockBytes;
  const auto line = static_cast<int64_t>(kCacheLine);
  const int64_t bytes = round_up(weights.in.padded(), kCodedBlock) / kCodedBlock * block;
  // An odd number of cache lines: many tokens do not meet in the same few sets of the L1 cache.
  return {.kind = mxfp4 ? kInt8Mxfp4 : kInt8Nvfp4,
          .token_stride = {(round_up(bytes, line) / line | 1) * line}};
}

// Nearest even of a number far below 2^22: its last bit becomes 1 on the way.
inline int32_t round_to_int(float x) {
  constexpr float kShift = 0x1.8p23f;
  return __builtin_bit_cast(int32_t, x + kShift) - __builtin_bit_cast(int32_t, kShift);
}

struct Int8Block {
  float scale;
  int8_t q[kCodedBlock];
};

// Comparisons of bits find a NaN too, and are vectorised.
inline Int8Block quantise(const float* x) {
  constexpr int32_t kInfinity = 0x7f800000;
  constexpr float kLargest = 127.0f;
  int32_t bits = 0;
  for (int i = 0; i < kCodedBlock; ++i) {
    bits = std::max(bits, __builtin_bit_cast(int32_t, x[i]) & std::numeric_limits<int32_t>::max());
  }
  Int8Block block{.scale = __builtin_bit_cast(float, bits) / kLargest, .q = {}};
  if (bits >= kInfinity) block.scale = std::numeric_limits<float>::quiet_NaN();
  if (!(block.scale > 0)) return block;
  for (int i = 0; i < kCodedBlock; ++i) {
    // The bound matters where the scale is subnormal.
    const float wanted = std::min(std::max(x[i] / block.scale, -kLargest), kLargest);
    block.q[i] = static_cast<int8_t>(round_to_int(wanted));
  }
  return block;
}

template <class Code>
void write_int8_block(const Int8Block& block, std::byte* to) {
  using Pieces = Int8Pieces<Code>;
  for (int64_t first = 0; first < kCodedBlock; first += Pieces::kElements) {
    int8_t ordered[Pieces::kElements];
    int32_t sum = 0;
    for (int64_t i = 0; i < Pieces::kElements; ++i) {
      const int64_t element = first + i / 8 * 8 + i % 4 * 2 + i / 4 % 2;
      ordered[i] = block.q[element];
      sum += block.q[first + i];
    }
    const Int8Head head{.half_scale = block.scale / 2, .start = -kInt8WeightOffset * sum};
    std::memcpy(to, &head, sizeof head);
    std::memcpy(to + sizeof head, ordered, sizeof ordered);
    to += Pieces::kBytes;
  }
}

// As KernelTable::prepare_input.
inline PreparedInput prepare_int8(MatrixView<const float> x, std::span<const int32_t> rows,
                                  Extent in, InputLayout layout, std::byte* prepared) {
  ROTA_DCHECK(x.width().logical() >= in.logical(), "the input is narrower than the weights");
  const int64_t tokens = rows.empty() ? x.rows() : static_cast<int64_t>(rows.size());
  for (int64_t t = 0; t < tokens; ++t) {
    const float* from = x.data() + (rows.empty() ? t : rows.data()[t]) * x.stride();
    std::byte* to = prepared + t * layout.token_stride.count;
    for (int64_t k = 0; k < in.padded(); k += kCodedBlock) {
      float block[kCodedBlock] = {};
      std::copy_n(from + k, std::clamp<int64_t>(in.logical() - k, 0, kCodedBlock), block);
      if (layout.kind == kInt8Mxfp4) {
        write_int8_block<Mxfp4Code>(quantise(block), to);
        to += Int8Pieces<Mxfp4Code>::kBlockBytes;
      } else {
        write_int8_block<Nvfp4Code>(quantise(block), to);
        to += Int8Pieces<Nvfp4Code>::kBlockBytes;
      }
    }
  }
  return {.data = prepared, .layout = layout, .compute = Compute::kInt8, .tokens = tokens};
}

}  // namespace
}  // namespace rota
