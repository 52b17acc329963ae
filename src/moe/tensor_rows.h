// Rows that the ranks of a tensor-parallel group have made one part each of, on all of them: the
// end of a pass where tokens moved (passes.h). The only communication of a mixture that is the
// group's alone.
//
//   ROTA_RETURN_IF_ERROR(rows.gather(sum));    // [T, width]: even_part() of them is here
#pragma once

#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "platform/memory.h"
#include "tensor/matrix.h"

namespace rota {

class TensorRows {
 public:
  // tokens: of the whole group at most. tensor: outlives it.
  static Result<TensorRows> make(Communicator& tensor, int64_t tokens, Extent width);
  static Bytes bytes(int parts, int64_t tokens, Extent width);

  Status gather(MatrixView<float> rows);

 private:
  TensorRows(Communicator& tensor, Extent width) : tensor_(&tensor), width_(width) {}

  Communicator* tensor_;
  Extent width_;
  Buffer mine_;                 // this rank's rows, without gaps
  Buffer all_;                  // everybody's
  std::vector<int64_t> begin_;  // [parts + 1], bytes
};

}  // namespace rota
