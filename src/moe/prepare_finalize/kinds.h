// The kinds of prepare_finalize.h, each in a file of its own.
#pragma once

#include <memory>

#include "moe/prepare_finalize.h"

namespace rota {

struct PrepareFinalizeKind {
  PrepareFinalizeNeeds (*needs)(const PrepareFinalizeSizing& sizing);
  Result<std::unique_ptr<PrepareFinalize>> (*make)(const PrepareFinalizeSizing& sizing);
};

PrepareFinalizeKind no_dp_ep_kind();
PrepareFinalizeKind allgather_reducescatter_kind();
PrepareFinalizeKind alltoallv_kind();
PrepareFinalizeKind low_latency_kind();

}  // namespace rota
