// How a checkpoint says that its weights are quantised: quantization_config in config.json, or
// ModelOpt's hf_quant_config.json beside it. For model_config.cc alone.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/status.h"
#include "checkpoint/model_config.h"

namespace rota {

// kNone if config.json has no quantization_config; kUnsupported, by name, for methods not
// implemented.
Result<QuantConfig> parse_quantization_config(const nlohmann::json& document,
                                              std::string_view source);

// Does the method fit the architecture and the widths (MXFP4: blocks of 32, every expert)?
Status check_quantization(const ModelConfig& config, std::string_view source);

// ModelOpt's formats are recognised and refused by name; a missing file is fine.
Status check_hf_quant_config(const std::string& model_dir);

// One pattern of modules_to_not_convert: '*' stands for any text, a match may end at a dot.
bool module_matches(std::string_view pattern, std::string_view module);

}  // namespace rota
