// The parts of the AVX2 matmul. Inputs are float32 for both compute types (rounded for kBf16 when
// prepared), in the order of InputKind. An element of the result, for one token and for many alike:
//
//   words        (BF16 and coded formats) two sums of 8 lanes over K, of the even and the odd floats of
//                words.h, added to each other, reduced as words.h says, plus the bias. FP8 under factors
//                that change along K: such sums over each kFoldColumns, times the factor, added up
//   float32      one sum of 8 lanes over K, reduced, plus the bias
//   kInOut       one sum over K, product by product, plus the bias
#pragma once

#include "kernels/matmul.h"

namespace rota::avx2 {

enum InputKind : int {
  kInOrder = 0,    // float32 weights, and BF16 weights of order kInOut
  kBf16Words = 1,  // BF16, FP8; 16 elements: even ones, then odd ones
  kE2m1Words = 2,  // MXFP4, NVFP4; 32 elements in the order of words.h
};

// Elements to which every kind's input is filled up with zeros.
inline constexpr int64_t kInputStep = 32;

// Words of order kOutIn, one to so many tokens.
inline constexpr int64_t kFewTokensBf16 = 3;
inline constexpr int64_t kFewTokensCoded = 2;
void multiply_few_words(const MatmulArgs& args);

// Any number of tokens, order kOutIn.
void multiply_many_words(const MatmulArgs& args);
void multiply_many_floats(const MatmulArgs& args);

// Any number of tokens, BF16 of order kInOut.
void multiply_in_out(const MatmulArgs& args);

// MXFP4 and NVFP4 of order kOutIn with Compute::kInt8, any number of tokens: matmul_int8.cc.
InputLayout int8_input_layout(const WeightMatrix& weights);
PreparedInput prepare_int8_input(MatrixView<const float> x, std::span<const int32_t> rows,
                                 Extent in, InputLayout layout, std::byte* prepared);
int64_t int8_columns();
void multiply_int8(const MatmulArgs& args);

Bytes int8_scratch_bytes();
Bytes many_scratch_bytes();
Bytes in_out_scratch_bytes();

}  // namespace rota::avx2
