// R6: the rows of a paid sum are not a share again.
#include "comm/partial.h"

namespace rota {

MatrixView<const float> read(const Reduced<float>& sum) {
#ifdef ROTA_WRONG
  [[maybe_unused]] const Partial<float> share(sum.rows());
#endif
  return sum.rows();
}

}  // namespace rota
