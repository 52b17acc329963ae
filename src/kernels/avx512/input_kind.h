// The orders and types of prepared input that the AVX-512 matmul reads.
#pragma once

#include "kernels/avx512/avx512_namespace.h"
#include "kernels/matmul.h"

namespace rota::ROTA_AVX512 {

enum InputKind : int {
  kFloatsInOrder = 0,  // float32 weights, and BF16 weights of order kInOut
  kFloatsBf16 = 1,     // 32 elements: even ones, then odd ones
  kFloatsE2m1 = 2,     // 32 elements in the order of words.h: even words, then odd ones
  kWordsInOrder = 3,   // BF16 values, for BF16 weights of either order and FP8
  kWordsE2m1 = 4,      // BF16 values in the order of words.h
};

// Elements to which every kind's input is filled up with zeros.
inline constexpr int64_t kInputStep = 64;

// An odd number of cache lines a token, so that the same element of many tokens does not fall into
// the same few sets of the L1 cache.
inline InputLayout layout_of(InputKind kind, Extent in) {
  const int64_t element = kind >= kWordsInOrder ? 2 : 4;
  const int64_t line = static_cast<int64_t>(kCacheLine);
  const int64_t lines = round_up(in.padded(), kInputStep) * element / line;
  return {.kind = kind, .token_stride = {(lines | 1) * line}};
}

}  // namespace rota::ROTA_AVX512
