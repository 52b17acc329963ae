#include "model/add_projection.h"

namespace rota {

Status add_projection(const Execution& exec, const Linear& linear, const PreparedInput& input,
                      MatrixView<float> projected, MatrixView<float> residual,
                      Communicator& ranks) {
  if (ranks.ranks() == 1) {
    linear.run(exec, input, projected, [&](int64_t first, int64_t count, int) {
      exec.kernels().add(residual.column_range(first, Extent(count)),
                         projected.column_range(first, Extent(count)));
    });
    return {};
  }
  linear.run(exec, input, projected);
  ROTA_ASSIGN_OR_RETURN(const Reduced<float> sum, ranks.reduce(Partial<float>(projected)));
  exec.for_rows(residual.rows(), [&](int64_t first, int64_t count) {
    exec.kernels().add(residual.row_range(first, count), sum.rows().row_range(first, count));
  });
  return {};
}

}  // namespace rota
