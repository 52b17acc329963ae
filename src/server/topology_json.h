// GET /v1/rota/topology: the ranks of the engine, where they are, and what travels between them.
#pragma once

#include "engine/engine_client.h"
#include "engine/engine_topology.h"
#include "server/api/json_fields.h"

namespace rota {

OrderedJson topology_json(const EngineTopology& topology, const EngineStats& stats);

}  // namespace rota
