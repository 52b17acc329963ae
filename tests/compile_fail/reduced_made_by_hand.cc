// R6: only a communicator says that a sum is paid.
#include "comm/partial.h"

namespace rota {

void declare(MatrixView<float> rows) {
  [[maybe_unused]] const Partial<float> share(rows);
#ifdef ROTA_WRONG
  [[maybe_unused]] const Reduced<float> sum(rows);
#endif
}

}  // namespace rota
