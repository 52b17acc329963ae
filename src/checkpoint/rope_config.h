// The rotary embedding's part of config.json: rope_theta with rope_scaling (older files), or
// rope_parameters (newer ones). For model_config.cc alone.
#pragma once

#include "checkpoint/json_fields.h"
#include "checkpoint/model_config.h"

namespace rota {

// config: architecture and max_position are set. Faults go to `f`.
//
// rope_scaling null (or rope_type "default") is plain rope. gpt_oss must say which it has: its
// readers disagree about what an absent entry means.
RopeConfig parse_rope(JsonFields& f, const ModelConfig& config);

}  // namespace rota
