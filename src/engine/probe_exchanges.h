// Each operation of a communicator, once, with contents that tell who sent them to whom.
#pragma once

#include <vector>

#include "comm/communicator.h"
#include "engine/probe.h"

namespace rota {

// Collective. Ends with the first that fails.
std::vector<ProbeStep> probe_exchanges(Communicator& world);

}  // namespace rota
