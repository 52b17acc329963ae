// Who the ranks of a loaded engine are.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine_topology.h"
#include "engine/load_engine.h"

namespace rota {

// Collective, once the team is there.
Result<EngineTopology> gather_topology(const LoadedEngine& engine);

// Lines for the log: the ranks together, then each of the first few.
std::vector<std::string> describe(const EngineTopology& topology);

}  // namespace rota
