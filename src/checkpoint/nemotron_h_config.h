// What only nemotron_h's config.json has: kinds of layers, Mamba2, shared experts, the latent
// width. For model_config.cc alone.
#pragma once

#include "checkpoint/json_fields.h"
#include "checkpoint/model_config.h"

namespace rota {

// hybrid_override_pattern ("MEM*E": Mamba, mixture, attention) or layers_block_type (["mamba",
// "moe", "attention"]); num_hidden_layers, if given, must agree.
void parse_layer_kinds(JsonFields& f, ModelConfig& config, IntegerRange layers);

void parse_nemotron_h(JsonFields& f, ModelConfig& config);

}  // namespace rota
