#include "base/check.h"
#include "moe/prepare_finalize/kinds.h"

namespace rota {
namespace {

PrepareFinalizeKind kind_of(Transport transport) {
  switch (transport) {
    case Transport::kNoDpEp:
      return no_dp_ep_kind();
    case Transport::kAllgatherReducescatter:
      return allgather_reducescatter_kind();
    case Transport::kAlltoallv:
      return alltoallv_kind();
    case Transport::kLowLatency:
      break;
  }
  return low_latency_kind();
}

}  // namespace

PrepareFinalizeNeeds prepare_finalize_needs(const PrepareFinalizeSizing& sizing) {
  return kind_of(sizing.transport).needs(sizing);
}

Result<std::unique_ptr<PrepareFinalize>> make_prepare_finalize(
    const PrepareFinalizeSizing& sizing) {
  ROTA_CHECK(sizing.communicator->ranks() == sizing.ranks, "sized for these ranks");
  ROTA_CHECK(!sizing.experts_whole || sizing.map.ranks() == 1 || sizing.map.ranks() == sizing.ranks,
             "experts are dealt over these ranks");
  return kind_of(sizing.transport).make(sizing);
}

}  // namespace rota
