// R6: a sum that is paid does not add to a share: every rank would add it.
#include "comm/partial.h"

namespace rota {

void add(Partial<float>& share, const Partial<float>& other, [[maybe_unused]] Reduced<float>& sum) {
  share += other;
#ifdef ROTA_WRONG
  share += sum;
#endif
}

}  // namespace rota
