#include "moe/padded_copy.h"

#include <cstring>

#include "base/check.h"
#include "quant/mxfp4.h"

namespace rota {
namespace {

constexpr int kScaleOfOne = 127;

// Bytes of `count` neighbouring elements of a row.
Bytes row_bytes(WeightFormat format, int64_t count) {
  switch (format) {
    case WeightFormat::kBf16:
      return {count * 2};
    case WeightFormat::kFloat32:
      return {count * 4};
    case WeightFormat::kMxfp4:
      return kMxfp4BlockBytes * (round_up(count, kMxfp4BlockElements) / kMxfp4BlockElements);
  }
  return {0};
}

int64_t blocks_of(int64_t elements) {
  return round_up(elements, kMxfp4BlockElements) / kMxfp4BlockElements;
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
  padded.scale_stride = {blocks_of(padded.in.padded())};
  const int64_t total = padded.out.padded() * padded.scale_stride.count;
  ROTA_ASSIGN_OR_RETURN(std::byte* const scales, allocate_in(buffers, total));
  std::memset(scales, kScaleOfOne, static_cast<size_t>(total));
  copy_rows({.from = reinterpret_cast<const std::byte*>(view.scales),
             .from_stride = view.scale_stride,
             .to = scales,
             .to_stride = padded.scale_stride,
             .rows = view.out.logical(),
             .bytes = {blocks_of(view.in.logical())}});
  padded.scales = reinterpret_cast<const uint8_t*>(scales);
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

Bytes matrix_bytes(WeightFormat format, Extent out, Extent in, bool bias) {
  Bytes bytes = row_bytes(format, in.padded()) * out.padded();
  if (format == WeightFormat::kMxfp4) {
    bytes = bytes + Bytes{blocks_of(in.padded()) * out.padded()};
  }
  return bias ? bytes + Bytes{out.padded() * static_cast<int64_t>(sizeof(Bf16))} : bytes;
}

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
  if (view.format == WeightFormat::kMxfp4) ROTA_RETURN_IF_ERROR(pad_scales(view, padded, buffers));
  if (view.bias != nullptr) ROTA_RETURN_IF_ERROR(pad_bias(view, padded, buffers));
  return padded;
}

}  // namespace rota
