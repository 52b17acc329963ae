// The parts of the AVX2 matmul. Inputs are float32 for both compute types (rounded for kBf16 when
// prepared), in the order of InputKind. An element of the result, for one token and for many alike:
//
//   BF16, MXFP4  two sums of 8 lanes over K, of the even and the odd floats of words.h, added to each
//                other, reduced as words.h says, plus the bias
//   float32      one sum of 8 lanes over K, reduced, plus the bias
//   kInOut       one sum over K, product by product, plus the bias
#pragma once

#include "kernels/matmul.h"

namespace rota::avx2 {

enum InputKind : int {
  kInOrder = 0,     // float32 weights, and BF16 weights of order kInOut
  kBf16Words = 1,   // 16 elements: even ones, then odd ones
  kMxfp4Words = 2,  // 32 elements in the order of words.h
};

// Elements to which every kind's input is filled up with zeros.
inline constexpr int64_t kInputStep = 32;

// BF16 and MXFP4 of order kOutIn, one to so many tokens.
inline constexpr int64_t kFewTokensBf16 = 3;
inline constexpr int64_t kFewTokensMxfp4 = 2;
void multiply_few_words(const MatmulArgs& args);

// Any number of tokens, order kOutIn.
void multiply_many_words(const MatmulArgs& args);  // BF16, MXFP4
void multiply_many_floats(const MatmulArgs& args);

// Any number of tokens, BF16 of order kInOut.
void multiply_in_out(const MatmulArgs& args);

Bytes many_scratch_bytes();
Bytes in_out_scratch_bytes();

}  // namespace rota::avx2
