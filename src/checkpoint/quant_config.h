// How a checkpoint says that its weights are quantised: quantization_config in config.json, or
// ModelOpt's hf_quant_config.json beside it. For model_config.cc alone.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "checkpoint/model_config.h"

namespace rota {

// kNone if config.json has no quantization_config; kUnsupported, by name, for methods not
// implemented.
Result<QuantConfig> parse_quantization_config(const nlohmann::json& document,
                                              std::string_view source);

// ModelOpt's own file, where it is there and names an algorithm: it knows more than config.json.
Result<std::optional<QuantConfig>> read_hf_quant_config(const std::string& model_dir);

// Sets config.expert_format. Does the method fit the architecture and the widths (whole blocks,
// every expert in one format)?
Status resolve_quantization(ModelConfig& config, std::string_view source);

// One pattern of modules_to_not_convert: '*' stands for any text, a match may end at a dot.
bool module_matches(std::string_view pattern, std::string_view module);

}  // namespace rota
