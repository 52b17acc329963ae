// The end of a block: residual += x W^T + b, where each rank of a tensor-parallel group has some of
// x's columns and of W's inputs, and the sum over the ranks is what is added: the same bits on
// each.
//
//   PreparedInput input = exec.prepare(x, o.in(), o.layout(), prepared);
//   ROTA_RETURN_IF_ERROR(add_projection(exec, o, input, projected, residual, ranks));
#pragma once

#include "base/status.h"
#include "comm/communicator.h"
#include "kernels/execution.h"
#include "kernels/linear.h"
#include "tensor/matrix.h"

namespace rota {

// projected, residual [T, linear.columns()]. projected: what was added, afterwards. One rank adds
// tile by tile, in the thread that computed it. Fails with its communicator alone.
Status add_projection(const Execution& exec, const Linear& linear, const PreparedInput& input,
                      MatrixView<float> projected, MatrixView<float> residual, Communicator& ranks);

}  // namespace rota
