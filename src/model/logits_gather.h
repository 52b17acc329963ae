// Each rank of a tensor-parallel group multiplies its rows of lm_head; then all of them have all
// logits, the same bits.
//
//   lm_head.run(exec, input, gather.own_columns(logits));
//   ROTA_RETURN_IF_ERROR(gather.run(exec, logits, ranks));
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "kernels/execution.h"
#include "platform/memory.h"
#include "tensor/matrix.h"

namespace rota {

class LogitsGather {
 public:
  // Rank r's are columns [column_begin[r], column_begin[r + 1]).
  static Result<LogitsGather> make(std::vector<int64_t> column_begin, int rank);

  // This rank's columns of logits [T, V], to be written before run().
  MatrixView<float> own_columns(MatrixView<float> logits) const;

  // Collective, and all ranks give as many rows. logits [T, V]: this rank's columns go to all
  // ranks, those of the others come from them. Does not allocate.
  Status run(const Execution& exec, MatrixView<float> logits, Communicator& ranks);

  int64_t bytes() const;

 private:
  LogitsGather() = default;
  Status run_pass(const Execution& exec, MatrixView<float> logits, Communicator& ranks);
  int64_t columns(size_t rank) const { return column_begin_[rank + 1] - column_begin_[rank]; }

  std::vector<int64_t> column_begin_;
  size_t rank_ = 0;
  std::vector<int64_t> byte_begin_;  // of each rank's piece in `all_`
  Buffer all_;
};

}  // namespace rota
