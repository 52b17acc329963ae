// R2: what follows the columns of an interior view is no tail, even where that of the whole is
// zero.
#include "tensor/matrix.h"

namespace rota {

float last(MatrixView<const float, Tail::kZero> rows);

float read(MatrixView<float, Tail::kZero> rows) {
#ifdef ROTA_WRONG
  return last(rows.column_range(0, Extent(4, 8)));
#else
  return last(rows.row_range(0, 1));
#endif
}

}  // namespace rota
