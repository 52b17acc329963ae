// Scalar matmul, the oracle: one row of weights at a time is decoded to float32, then multiplied
// with every token.
//
// Order of sums: lane l of 16 takes the products of k = l, l + 16, l + 32, ... in that order, each
// rounded, then added; the lanes are added as a tree (l + 8, + 4, + 2, + 1); the bias comes last.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/int8_input.h"
#include "kernels/ref/ref_kernels.h"
#include "quant/fp8.h"
#include "quant/mxfp4.h"
#include "quant/nvfp4.h"

namespace rota::ref {
namespace {

constexpr int64_t kLanes = 16;

const std::byte* row_of(const WeightMatrix& weights, int64_t row) {
  return weights.data + row * weights.row_stride.count;
}

Bf16 load_bf16(const std::byte* data, int64_t index) {
  Bf16 value;
  std::memcpy(&value, data + index * 2, sizeof value);
  return value;
}

void decode_mxfp4_row(const WeightMatrix& weights, int64_t n, float* row) {
  const auto* codes = reinterpret_cast<const uint8_t*>(row_of(weights, n));
  const uint8_t* scales = weights.scales + n * weights.scale_stride.count;
  const int64_t blocks = (weights.in.logical() + kMxfp4BlockElements - 1) / kMxfp4BlockElements;
  for (int64_t b = 0; b < blocks; ++b) {
    decode_mxfp4_block(std::span<const uint8_t, 16>(codes + b * kMxfp4BlockBytes.count, 16),
                       scales[b], std::span<float, 32>(row + b * kMxfp4BlockElements, 32));
  }
}

// Without the matrix's own factor.
void decode_nvfp4_row(const WeightMatrix& weights, int64_t n, float* row) {
  const auto* codes = reinterpret_cast<const uint8_t*>(row_of(weights, n));
  const uint8_t* scales = weights.scales + n * weights.scale_stride.count;
  const int64_t blocks = (weights.in.logical() + kNvfp4BlockElements - 1) / kNvfp4BlockElements;
  for (int64_t b = 0; b < blocks; ++b) {
    decode_nvfp4_block(std::span<const uint8_t, 8>(codes + b * kNvfp4BlockBytes.count, 8),
                       scales[b], std::span<float, 16>(row + b * kNvfp4BlockElements, 16));
  }
}

// With the factors that change along K, if there are such.
void decode_fp8_row(const WeightMatrix& weights, int64_t n, float* row) {
  const auto* codes = reinterpret_cast<const uint8_t*>(row_of(weights, n));
  const BlockScales& factors = weights.factors;
  for (int64_t k = 0; k < weights.in.logical(); ++k) {
    row[k] = e4m3_to_float(codes[k]);
    if (weights.folds()) row[k] *= factors.row(n)[k / factors.columns];
  }
}

// row [K] = the weights of output n, as float32.
void decode_row(const WeightMatrix& weights, int64_t n, float* row) {
  const int64_t count = weights.in.logical();
  if (weights.format == WeightFormat::kMxfp4) {
    decode_mxfp4_row(weights, n, row);
  } else if (weights.format == WeightFormat::kNvfp4) {
    decode_nvfp4_row(weights, n, row);
  } else if (weights.format == WeightFormat::kFp8) {
    decode_fp8_row(weights, n, row);
  } else if (weights.format == WeightFormat::kFloat32) {
    std::memcpy(row, row_of(weights, n), static_cast<size_t>(count) * sizeof(float));
  } else if (weights.order == WeightOrder::kOutIn) {
    for (int64_t k = 0; k < count; ++k) row[k] = to_float(load_bf16(row_of(weights, n), k));
  } else {
    for (int64_t k = 0; k < count; ++k) row[k] = to_float(load_bf16(row_of(weights, k), n));
  }
}

float dot(const float* a, const float* b, int64_t count) {
  float lane[kLanes] = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t k = 0; k < whole; k += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) lane[l] += a[k + l] * b[k + l];
  }
  for (int64_t k = whole; k < count; ++k) lane[k - whole] += a[k] * b[k];
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t l = 0; l < width; ++l) lane[l] += lane[l + width];
  }
  return lane[0];
}

// The piece's elements [kElements] of K, in the order of int8_input.h, times twice their weights.
template <class Code>
int32_t int8_sum(const uint8_t* codes, const std::byte* q) {
  int32_t sum = 0;
  for (int64_t i = 0; i < Int8Pieces<Code>::kElements; ++i) {
    const int64_t element = i / 8 * 8 + i % 4 * 2 + i / 4 % 2;
    const uint8_t code = codes[element / 2] >> (element % 2 * 4) & 15;
    sum += static_cast<int32_t>(2 * kE2m1Values[code]) * static_cast<int8_t>(q[i]);
  }
  return sum;
}

// One float product and sum a scale, in the order of K.
template <class Code>
float int8_dot(const WeightMatrix& weights, int64_t n, const std::byte* x) {
  using Pieces = Int8Pieces<Code>;
  const auto* codes = reinterpret_cast<const uint8_t*>(row_of(weights, n));
  const uint8_t* scales = weights.scales + n * weights.scale_stride.count;
  float sum = 0;
  for (int64_t k = 0; k < weights.in.logical(); k += Pieces::kElements) {
    Int8Head head;
    std::memcpy(&head, x, sizeof head);
    const float scale = Pieces::kCount == 1 ? e8m0_to_float(*scales) : e4m3_to_float(*scales);
    const auto products = static_cast<float>(int8_sum<Code>(codes, x + sizeof head));
    sum += products * (scale * head.half_scale);
    x += Pieces::kBytes;
    codes += Pieces::kElements / 2;
    ++scales;
  }
  return sum;
}

void multiply_int8(const MatmulArgs& args) {
  const WeightMatrix& weights = *args.weights;
  const bool mxfp4 = weights.format == WeightFormat::kMxfp4;
  for (int64_t n = args.first_column; n < args.end_column; ++n) {
    for (int64_t t = 0; t < args.input.tokens; ++t) {
      const std::byte* x = args.input.data + t * args.input.layout.token_stride.count;
      const float sum =
          mxfp4 ? int8_dot<Mxfp4Code>(weights, n, x) : int8_dot<Nvfp4Code>(weights, n, x);
      args.out[t * args.out_stride + n] = weights.finish(n, sum);
    }
  }
}

}  // namespace

InputLayout input_layout(const WeightMatrix& weights, Compute compute) {
  if (compute == Compute::kInt8) return int8_layout(weights);
  const int64_t bytes = weights.in.padded() * static_cast<int64_t>(sizeof(float));
  return {.kind = 0, .token_stride = {round_up(bytes, kCacheLine)}};
}

PreparedInput prepare_input(MatrixView<const float> x, std::span<const int32_t> rows, Extent in,
                            InputLayout layout, Compute compute, std::byte* prepared) {
  if (compute == Compute::kInt8) return prepare_int8(x, rows, in, layout, prepared);
  ROTA_DCHECK(x.width().logical() >= in.logical(), "the input is narrower than the weights");
  const int64_t tokens = rows.empty() ? x.rows() : static_cast<int64_t>(rows.size());
  for (int64_t t = 0; t < tokens; ++t) {
    const float* from = x.row(rows.empty() ? t : rows[static_cast<size_t>(t)]).data();
    auto* to = reinterpret_cast<float*>(prepared + t * layout.token_stride.count);
    for (int64_t k = 0; k < in.logical(); ++k) {
      to[k] = compute == Compute::kBf16 ? to_float(to_bf16(from[k])) : from[k];
    }
    std::fill(to + in.logical(), to + in.padded(), 0.0f);
  }
  return {.data = prepared, .layout = layout, .compute = compute, .tokens = tokens};
}

int64_t column_granularity(const WeightMatrix&, Compute) { return 1; }

Bytes matmul_scratch_bytes(Extent max_in) {
  const int64_t bytes = round_up(max_in.padded(), kMxfp4BlockElements) * 4;
  return {round_up(bytes, kCacheLine)};
}

void matmul(const MatmulArgs& args) {
  const WeightMatrix& weights = *args.weights;
  ROTA_DCHECK(static_cast<int64_t>(args.scratch.size()) >= matmul_scratch_bytes(weights.in).count,
              "matmul needs more scratch");
  if (args.input.compute == Compute::kInt8) return multiply_int8(args);
  auto* row = reinterpret_cast<float*>(args.scratch.data());
  for (int64_t n = args.first_column; n < args.end_column; ++n) {
    decode_row(weights, n, row);
    for (int64_t t = 0; t < args.input.tokens; ++t) {
      const std::byte* x = args.input.data + t * args.input.layout.token_stride.count;
      const float sum = dot(row, reinterpret_cast<const float*>(x), weights.in.logical());
      args.out[t * args.out_stride + n] = weights.finish(n, sum);
    }
  }
}

}  // namespace rota::ref
