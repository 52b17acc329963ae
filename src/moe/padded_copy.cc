#include "moe/padded_copy.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace rota {
namespace {

constexpr int kE8m0One = 127;
constexpr int kE4m3One = 56;

int64_t blocks_of(int64_t elements, int64_t block) { return round_up(elements, block) / block; }

// A byte of scale that stands for 1.
int scale_of_one(WeightFormat format) {
  return format == WeightFormat::kMxfp4 ? kE8m0One : kE4m3One;
}

Result<std::byte*> allocate_in(std::vector<Buffer>& buffers, int64_t bytes) {
  ROTA_ASSIGN_OR_RETURN(Buffer buffer, Buffer::allocate(static_cast<size_t>(bytes), Fill::kZero));
  buffers.push_back(std::move(buffer));
  return buffers.back().data();
}

// [rows] of `bytes` each, out of one stride and into another.
struct RowCopy {
  const std::byte* from;
  Bytes from_stride;
  std::byte* to;
  Bytes to_stride;
  int64_t rows;
  Bytes bytes;
};

void copy_rows(const RowCopy& copy) {
  for (int64_t r = 0; r < copy.rows; ++r) {
    std::memcpy(copy.to + r * copy.to_stride.count, copy.from + r * copy.from_stride.count,
                static_cast<size_t>(copy.bytes.count));
  }
}

Status pad_scales(const WeightMatrix& view, WeightMatrix& padded, std::vector<Buffer>& buffers) {
  padded.scale_stride = scale_bytes(view.format, padded.in.padded());
  const int64_t total = padded.out.padded() * padded.scale_stride.count;
  ROTA_ASSIGN_OR_RETURN(std::byte* const scales, allocate_in(buffers, total));
  std::memset(scales, scale_of_one(view.format), static_cast<size_t>(total));
  copy_rows({.from = reinterpret_cast<const std::byte*>(view.scales),
             .from_stride = view.scale_stride,
             .to = scales,
             .to_stride = padded.scale_stride,
             .rows = view.out.logical(),
             .bytes = scale_bytes(view.format, view.in.logical())});
  padded.scales = reinterpret_cast<const uint8_t*>(scales);
  return {};
}

// Rows of blocks that begin behind the last logical output get factors of 1. Nothing is read of
// blocks behind the last logical input.
Status pad_factors(const WeightMatrix& view, WeightMatrix& padded, std::vector<Buffer>& buffers) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(float));
  const BlockScales& from = view.factors;
  if (from.rows >= view.out.logical() && from.first_row == 0) {
    padded.factors.rows = padded.out.padded();
    return {};
  }
  // A shard's factors are columns of a wider grid: no more of a row than they are is read.
  const int64_t columns = blocks_of(view.in.logical(), from.columns);
  const int64_t rows = blocks_of(padded.out.padded() + from.first_row, from.rows);
  ROTA_ASSIGN_OR_RETURN(std::byte* const data, allocate_in(buffers, rows * columns * kSize));
  auto* factors = reinterpret_cast<float*>(data);
  std::fill_n(factors, rows * columns, 1.0f);
  const int64_t there = blocks_of(view.out.logical() + from.first_row, from.rows);
  for (int64_t r = 0; r < there; ++r) {
    std::copy_n(from.data + r * from.stride, columns, factors + r * columns);
  }
  padded.factors.stride = columns;
  padded.factors.data = factors;
  return {};
}

Status pad_bias(const WeightMatrix& view, WeightMatrix& padded, std::vector<Buffer>& buffers) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(Bf16));
  ROTA_ASSIGN_OR_RETURN(std::byte* const bias, allocate_in(buffers, padded.out.padded() * kSize));
  std::memcpy(bias, view.bias, static_cast<size_t>(view.out.logical() * kSize));
  padded.bias = reinterpret_cast<const Bf16*>(bias);
  return {};
}

}  // namespace

Result<WeightMatrix> pad_matrix(const WeightMatrix& view, Extent out, Extent in,
                                std::vector<Buffer>& buffers) {
  ROTA_CHECK(view.out == Extent(out.logical()) && view.in == Extent(in.logical()),
             "padding starts from the logical region");
  const bool out_in = view.order == WeightOrder::kOutIn;
  const Extent rows = out_in ? out : in;
  const Extent columns = out_in ? in : out;
  WeightMatrix padded = view;
  padded.out = out;
  padded.in = in;
  padded.row_stride = row_bytes(view.format, columns.padded());
  ROTA_ASSIGN_OR_RETURN(std::byte* const data,
                        allocate_in(buffers, padded.row_stride.count * rows.padded()));
  copy_rows({.from = view.data,
             .from_stride = view.row_stride,
             .to = data,
             .to_stride = padded.row_stride,
             .rows = rows.logical(),
             .bytes = row_bytes(view.format, columns.logical())});
  padded.data = data;
  if (view.scales != nullptr) ROTA_RETURN_IF_ERROR(pad_scales(view, padded, buffers));
  if (view.factors.data != nullptr) ROTA_RETURN_IF_ERROR(pad_factors(view, padded, buffers));
  if (view.bias != nullptr) ROTA_RETURN_IF_ERROR(pad_bias(view, padded, buffers));
  return padded;
}

}  // namespace rota
