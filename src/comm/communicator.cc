#include "comm/communicator.h"

#include <utility>

namespace rota {

Result<Reduced<float>> Communicator::reduce(Partial<float>&& partial) {
  const Partial<float> spent = std::move(partial);
  ROTA_RETURN_IF_ERROR(sum_over_ranks(spent.share_));
  return Reduced<float>(spent.share_);
}

}  // namespace rota
