// Attention over pages, scalar: one query row at a time, one key after the other in double.
//
// Page: for each kv head the keys [64, head_dim], then the values [64, head_dim], as they came.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ref/ref_kernels.h"

namespace rota::ref {
namespace {

int64_t element_bytes(KvFormat format) { return format == KvFormat::kBf16 ? 2 : 4; }

// Element 0 of one position's key (part 0) or value (part 1).
std::byte* row_in_page(const KvShape& shape, const KvPages& pages, int64_t position,
                       int64_t kv_head, int64_t part) {
  const int32_t page = pages.block_table[static_cast<size_t>(position / kKvBlockTokens)];
  const int64_t row = (kv_head * 2 + part) * kKvBlockTokens + position % kKvBlockTokens;
  return pages.base + page * pages.page_stride.count +
         row * shape.head_dim * element_bytes(shape.format);
}

double element(const std::byte* row, KvFormat format, int64_t index) {
  if (format == KvFormat::kBf16) return to_float(reinterpret_cast<const Bf16*>(row)[index]);
  return reinterpret_cast<const float*>(row)[index];
}

void store_row(std::byte* row, const KvShape& shape, const float* from) {
  if (shape.format == KvFormat::kFloat32) {
    std::copy_n(from, shape.head_dim, reinterpret_cast<float*>(row));
  } else {
    std::transform(from, from + shape.head_dim, reinterpret_cast<Bf16*>(row), to_bf16);
  }
}

// The softmax so far: weighted values and weights, both relative to the largest logit.
struct Online {
  double largest = -std::numeric_limits<double>::infinity();
  double weights = 0;
  std::span<double> values;  // [head_dim]

  // Takes a logit in; returns its weight.
  double take(double logit) {
    if (logit > largest) {
      const double shrink = std::exp(largest - logit);
      weights *= shrink;
      for (double& value : values) value *= shrink;
      largest = logit;
    }
    const double weight = std::exp(logit - largest);
    weights += weight;
    return weight;
  }
};

void attend_row(const AttendArgs& args, int64_t token, int64_t query_head) {
  const KvShape& shape = args.shape;
  const int64_t dim = shape.head_dim;
  const int64_t position = args.first_position + token;
  const int64_t first_key = args.window > 0 ? std::max<int64_t>(0, position - args.window + 1) : 0;
  const float* query = args.queries + token * args.query_stride + query_head * dim;
  Online softmax;
  softmax.values = {reinterpret_cast<double*>(args.scratch.data()), static_cast<size_t>(dim)};
  std::fill(softmax.values.begin(), softmax.values.end(), 0.0);

  for (int64_t j = first_key; j <= position; ++j) {
    const std::byte* key = row_in_page(shape, args.pages, j, args.kv_head, 0);
    const std::byte* value = row_in_page(shape, args.pages, j, args.kv_head, 1);
    double dot = 0;
    for (int64_t i = 0; i < dim; ++i) dot += double{query[i]} * element(key, shape.format, i);
    const double weight = softmax.take(dot * double{args.scale});
    for (int64_t i = 0; i < dim; ++i) {
      softmax.values[static_cast<size_t>(i)] += weight * element(value, shape.format, i);
    }
  }
  if (args.sinks != nullptr) softmax.take(double{args.sinks[query_head]});

  float* out = args.out + token * args.out_stride + query_head * dim;
  for (int64_t i = 0; i < dim; ++i) {
    out[i] = static_cast<float>(softmax.values[static_cast<size_t>(i)] / softmax.weights);
  }
}

}  // namespace

Bytes kv_page_bytes(const KvShape& shape) {
  const int64_t elements = shape.kv_heads * 2 * kKvBlockTokens * shape.head_dim;
  return {elements * element_bytes(shape.format)};
}

Bytes attend_scratch_bytes(const KvShape& shape, int64_t /*query_heads*/) {
  return {shape.head_dim * static_cast<int64_t>(sizeof(double))};
}

void store_kv(const StoreKvArgs& args) {
  const KvShape& shape = args.shape;
  for (int64_t t = 0; t < args.tokens; ++t) {
    const int64_t position = args.first_position + t;
    for (int64_t h = 0; h < shape.kv_heads; ++h) {
      const int64_t offset = t * args.stride + h * shape.head_dim;
      store_row(row_in_page(shape, args.pages, position, h, 0), shape, args.keys + offset);
      store_row(row_in_page(shape, args.pages, position, h, 1), shape, args.values + offset);
    }
  }
}

void attend(const AttendArgs& args) {
  const int64_t group = args.query_heads / args.shape.kv_heads;
  for (int64_t t = args.token_begin; t < args.token_end; ++t) {
    for (int64_t g = 0; g < group; ++g) attend_row(args, t, args.kv_head * group + g);
  }
}

}  // namespace rota::ref
