// Rows of coded weights, block by block: 32 elements, whatever the format. Included by the matmul
// sources of the SIMD instruction sets; everything is internal to each of them.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/matmul.h"

namespace rota {
namespace {

inline constexpr int64_t kCodedBlock = 32;

// Bytes of codes and of scales in a block of 32.
struct Plain {
  static constexpr bool kCoded = false;
  static constexpr bool kHasFactors = false;
  static constexpr int64_t kCodeBytes = 0;
  static constexpr int64_t kScaleBytes = 0;
};
struct Mxfp4Code {
  static constexpr bool kCoded = true;
  static constexpr bool kHasFactors = false;
  static constexpr int64_t kCodeBytes = 16;
  static constexpr int64_t kScaleBytes = 1;
};
struct Nvfp4Code {
  static constexpr bool kCoded = true;
  static constexpr bool kHasFactors = false;  // but for one of the whole matrix
  static constexpr int64_t kCodeBytes = 16;
  static constexpr int64_t kScaleBytes = 2;
};
struct Fp8Code {
  static constexpr bool kCoded = true;
  static constexpr bool kHasFactors = true;
  static constexpr int64_t kCodeBytes = 32;
  static constexpr int64_t kScaleBytes = 0;
};

// A tile's rows from some k on: row r's blocks begin at codes + r * code_stride.
struct CodedRows {
  const uint8_t* codes;
  int64_t code_stride;
  const uint8_t* scales;
  int64_t scale_stride;
};

// Row n from block k / 32 on.
template <class Code>
CodedRows coded_rows(const WeightMatrix& weights, int64_t n, int64_t k) {
  const int64_t block = k / kCodedBlock;
  return {.codes = reinterpret_cast<const uint8_t*>(weights.data) + n * weights.row_stride.count +
                   block * Code::kCodeBytes,
          .code_stride = weights.row_stride.count,
          .scales = weights.scales + n * weights.scale_stride.count + block * Code::kScaleBytes,
          .scale_stride = weights.scale_stride.count};
}

// A block of which `left` elements are the row's: where it lies, or, for the last block of a row
// that is no multiple of 32 wide, a copy that ends in zeros. No byte behind the row is read.
template <class Code>
class CodedTail {
 public:
  CodedTail(const CodedRows& row, int64_t left) : codes_(row.codes), scales_(row.scales) {
    if (left >= kCodedBlock) return;
    copy(row.codes, (left * Code::kCodeBytes + kCodedBlock - 1) / kCodedBlock, code_copy_);
    copy(row.scales, (left * Code::kScaleBytes + kCodedBlock - 1) / kCodedBlock, scale_copy_);
    codes_ = code_copy_;
    scales_ = scale_copy_;
  }
  CodedTail(const CodedTail&) = delete;
  CodedTail& operator=(const CodedTail&) = delete;

  const uint8_t* codes() const { return codes_; }
  const uint8_t* scales() const { return scales_; }

 private:
  template <size_t kSize>
  static void copy(const uint8_t* from, int64_t count, uint8_t (&to)[kSize]) {
    std::memset(to, 0, kSize);
    if (count > 0) std::memcpy(to, from, static_cast<size_t>(count));
  }

  const uint8_t* codes_;
  const uint8_t* scales_;
  uint8_t code_copy_[kCodedBlock];
  uint8_t scale_copy_[4];
};

}  // namespace
}  // namespace rota
