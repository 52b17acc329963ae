// The dialects of quantization_config, one function each. For quant_config.cc alone.
//
// Each reads what it needs of its object and leaves its faults in the fields.
#pragma once

#include "checkpoint/json_fields.h"
#include "checkpoint/model_config.h"

namespace rota {

// Hugging Face's own FP8: weight_block_size, or one factor a matrix.
void parse_fp8(JsonFields& f, QuantConfig& quant);

// compressed-tensors, "float-quantized": FP8 by matrix, row or block; ignore may hold regular
// expressions of a simple kind.
void parse_compressed_tensors(JsonFields& f, QuantConfig& quant);

// ModelOpt in config.json: quant_algo with config_groups and ignore.
void parse_modelopt(JsonFields& f, QuantConfig& quant);

// ModelOpt in hf_quant_config.json: quant_algo with exclude_modules, or quantized_layers.
void parse_modelopt_file(JsonFields& f, QuantConfig& quant);

// A list of module patterns, within limits that keep matching cheap.
std::vector<std::string> module_patterns(JsonFields& f, std::string_view name);

}  // namespace rota
