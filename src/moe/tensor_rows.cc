#include "moe/tensor_rows.h"

#include <algorithm>

#include "moe/passes.h"

namespace rota {
namespace {

int64_t row_bytes(Extent width) { return width.logical() * static_cast<int64_t>(sizeof(float)); }

}  // namespace

Result<TensorRows> TensorRows::make(Communicator& tensor, int64_t tokens, Extent width) {
  TensorRows rows(tensor, width);
  const int64_t part = (tokens + tensor.ranks() - 1) / tensor.ranks();
  const auto bytes = [&](int64_t count) { return static_cast<size_t>(count * row_bytes(width)); };
  ROTA_ASSIGN_OR_RETURN(rows.mine_, Buffer::allocate(bytes(part), Fill::kUnspecified));
  ROTA_ASSIGN_OR_RETURN(rows.all_, Buffer::allocate(bytes(tokens), Fill::kUnspecified));
  rows.begin_.resize(static_cast<size_t>(tensor.ranks()) + 1);
  return rows;
}

Bytes TensorRows::bytes(int parts, int64_t tokens, Extent width) {
  return Bytes{row_bytes(width)} * (tokens + (tokens + parts - 1) / parts);
}

Status TensorRows::gather(MatrixView<float> rows) {
  const int parts = tensor_->ranks();
  const ShardRange whole{.begin = 0, .end = rows.rows()};
  for (int rank = 0; rank < parts; ++rank) {
    begin_[static_cast<size_t>(rank) + 1] = even_part(whole, parts, rank).end * row_bytes(width_);
  }
  const auto at = [&](const Buffer& buffer, int64_t row) {
    return std::span(reinterpret_cast<float*>(buffer.data()) + row * width_.logical(),
                     static_cast<size_t>(width_.logical()));
  };
  const ShardRange mine = even_part(whole, parts, tensor_->rank());
  for (int64_t row = mine.begin; row < mine.end; ++row) {
    std::ranges::copy(rows.row(row), at(mine_, row - mine.begin).begin());
  }
  const auto bytes = static_cast<size_t>((mine.end - mine.begin) * row_bytes(width_));
  ROTA_RETURN_IF_ERROR(
      tensor_->all_gather({mine_.data(), bytes}, {.data = all_.data(), .begin = begin_}));
  for (int64_t row = 0; row < rows.rows(); ++row) {
    if (row < mine.begin || row >= mine.end) {
      std::ranges::copy(at(all_, row), rows.row(row).begin());
    }
  }
  return {};
}

}  // namespace rota
