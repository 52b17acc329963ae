#include "model/logits_gather.h"

#include <algorithm>

namespace rota {
namespace {

// Rows that travel at once: those of a decode step of some sequences, with few megabytes on their
// way.
constexpr int64_t kRowsAPass = 16;

constexpr auto kFloat = static_cast<int64_t>(sizeof(float));

// `rows` rows, one behind the other without gaps.
MatrixView<float> packed(std::byte* data, int64_t rows, int64_t columns) {
  return {reinterpret_cast<float*>(data), rows, Extent(columns), columns};
}

void copy_row(MatrixView<float> to, MatrixView<float> from, int64_t row) {
  std::copy_n(from.row(row).data(), from.row(row).size(), to.row(row).data());
}

}  // namespace

Result<LogitsGather> LogitsGather::make(std::vector<int64_t> column_begin, int rank) {
  LogitsGather gather;
  gather.rank_ = static_cast<size_t>(rank);
  gather.byte_begin_.resize(column_begin.size());
  gather.column_begin_ = std::move(column_begin);
  const auto bytes = static_cast<size_t>(kRowsAPass * gather.column_begin_.back() * kFloat);
  ROTA_ASSIGN_OR_RETURN(gather.all_, Buffer::allocate(bytes, Fill::kUnspecified));
  return gather;
}

int64_t LogitsGather::bytes() const { return static_cast<int64_t>(all_.size()); }

MatrixView<float> LogitsGather::own_columns(MatrixView<float> logits) const {
  return logits.column_range(column_begin_[rank_], Extent(columns(rank_)));
}

Status LogitsGather::run(const Execution& exec, MatrixView<float> logits, Communicator& ranks) {
  for (int64_t first = 0; first < logits.rows(); first += kRowsAPass) {
    const int64_t count = std::min(kRowsAPass, logits.rows() - first);
    ROTA_RETURN_IF_ERROR(run_pass(exec, logits.row_range(first, count), ranks));
  }
  return {};
}

Status LogitsGather::run_pass(const Execution& exec, MatrixView<float> logits,
                              Communicator& ranks) {
  const int64_t rows = logits.rows();
  std::transform(column_begin_.begin(), column_begin_.end(), byte_begin_.begin(),
                 [rows](int64_t column) { return column * rows * kFloat; });
  const auto piece = [&](size_t rank) {
    return packed(all_.data() + byte_begin_[rank], rows, columns(rank));
  };
  const auto here = [&](size_t rank) {
    return logits.column_range(column_begin_[rank], Extent(columns(rank)));
  };
  exec.for_items(rows, [&](int64_t row, int) { copy_row(piece(rank_), here(rank_), row); });
  const ReceivedPieces all{.data = all_.data(), .begin = byte_begin_};
  ROTA_RETURN_IF_ERROR(ranks.all_gather(all.of(static_cast<int>(rank_)), all));
  exec.for_items(rows, [&](int64_t row, int) {
    for (size_t rank = 0; rank + 1 < column_begin_.size(); ++rank) {
      if (rank != rank_) copy_row(here(rank), piece(rank), row);
    }
  });
  return {};
}

}  // namespace rota
