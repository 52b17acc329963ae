// R6: what was reduced is not reduced again.
#include <utility>

#include "comm/communicator.h"

namespace rota {

Result<Reduced<float>> reduce(Communicator& ranks, Partial<float> share) {
  auto sum = ranks.reduce(std::move(share));
#ifdef ROTA_WRONG
  sum = ranks.reduce(std::move(sum).value());
#endif
  return sum;
}

}  // namespace rota
