// R6: a share is spent by its reduction: whoever reduces it gives it away.
#include <utility>

#include "comm/communicator.h"

namespace rota {

Result<Reduced<float>> reduce(Communicator& ranks, Partial<float> share) {
#ifdef ROTA_WRONG
  return ranks.reduce(share);
#else
  return ranks.reduce(std::move(share));
#endif
}

}  // namespace rota
