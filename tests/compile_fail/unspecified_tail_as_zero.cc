// R2: a tail of which nothing is known is not read as zeros; zero_tails() makes it so.
#include "tensor/matrix.h"

namespace rota {

float last(MatrixView<const float, Tail::kZero> rows);

float read(MatrixView<float> rows) {
#ifdef ROTA_WRONG
  return last(rows);
#else
  return last(zero_tails(rows));
#endif
}

}  // namespace rota
