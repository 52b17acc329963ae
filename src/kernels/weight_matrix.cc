#include "kernels/weight_matrix.h"

#include "quant/mxfp4.h"
#include "quant/nvfp4.h"

namespace rota {
namespace {

int64_t blocks_of(int64_t elements, int64_t block) { return round_up(elements, block) / block; }

int64_t whole_blocks(int64_t elements, int64_t block) {
  ROTA_CHECK(elements % block == 0, "a slice begins with a whole block");
  return elements / block;
}

// Elements under one of WeightMatrix::scales.
int64_t scale_block(WeightFormat format) {
  return format == WeightFormat::kNvfp4 ? kNvfp4BlockElements : kMxfp4BlockElements;
}

// The block of factors with which a slice begins.
int64_t first_factor(const BlockScales& factors, int64_t first, int64_t count) {
  const bool inside_one = first / factors.columns == (first + count - 1) / factors.columns;
  return inside_one ? first / factors.columns : whole_blocks(first, factors.columns);
}

}  // namespace

Bytes row_bytes(WeightFormat format, int64_t count) {
  switch (format) {
    case WeightFormat::kBf16:
      return {count * 2};
    case WeightFormat::kFloat32:
      return {count * 4};
    case WeightFormat::kMxfp4:
      return kMxfp4BlockBytes * blocks_of(count, kMxfp4BlockElements);
    case WeightFormat::kNvfp4:
      return kNvfp4BlockBytes * blocks_of(count, kNvfp4BlockElements);
    case WeightFormat::kFp8:
      return {count};
  }
  return {0};
}

Bytes scale_bytes(WeightFormat format, int64_t count) {
  return {is_e2m1(format) ? blocks_of(count, scale_block(format)) : 0};
}

Bytes matrix_bytes(WeightFormat format, Extent out, Extent in, bool bias) {
  Bytes bytes = row_bytes(format, in.padded()) * out.padded();
  bytes = bytes + scale_bytes(format, in.padded()) * out.padded();
  return bias ? bytes + size_of(DType::kBf16) * out.padded() : bytes;
}

Bytes weight_bytes(const WeightMatrix& matrix) {
  return matrix_bytes(matrix.format, matrix.out, matrix.in, matrix.bias != nullptr);
}

WeightMatrix column_slice(const WeightMatrix& weights, int64_t first, int64_t count) {
  WeightMatrix slice = weights;
  slice.out = Extent(count);
  if (weights.order == WeightOrder::kOutIn) {
    slice.data += first * weights.row_stride.count;
  } else {
    slice.data += row_bytes(weights.format, first).count;
  }
  if (weights.scales != nullptr) slice.scales += first * weights.scale_stride.count;
  if (weights.bias != nullptr) slice.bias += first;
  slice.factors.first_row += first;
  return slice;
}

WeightMatrix input_slice(const WeightMatrix& weights, int64_t first, int64_t count) {
  WeightMatrix slice = weights;
  slice.in = Extent(count);
  if (weights.order == WeightOrder::kInOut) {
    slice.data += first * weights.row_stride.count;
    return slice;
  }
  slice.data += row_bytes(weights.format, first).count;
  if (weights.scales != nullptr) slice.scales += whole_blocks(first, scale_block(weights.format));
  if (weights.folds()) slice.factors.data += first_factor(weights.factors, first, count);
  return slice;
}

}  // namespace rota
