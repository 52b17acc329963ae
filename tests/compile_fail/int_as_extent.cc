// R1: a width that may be padded is no int.
#include "tensor/matrix.h"

namespace rota {

MatrixView<float> columns(MatrixView<float> rows) {
#ifdef ROTA_WRONG
  return rows.column_range(0, 64);
#else
  return rows.column_range(0, Extent(64));
#endif
}

}  // namespace rota
