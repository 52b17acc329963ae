// R6: a share that is still owed does not add to a sum that is paid.
#include "comm/partial.h"

namespace rota {

void add(Reduced<float>& sum, const Reduced<float>& other, [[maybe_unused]] Partial<float>& share) {
  sum += other;
#ifdef ROTA_WRONG
  sum += share;
#endif
}

}  // namespace rota
