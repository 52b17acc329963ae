// generation_config.json: what the authors of a model suggest for sampling, and its end tokens.
//
// Contract: fields that are absent (or null) stay empty, so that a server can tell a suggestion
// from nothing; fields out of range are errors that name them. A missing file is an empty config.
//
//   ROTA_ASSIGN_OR_RETURN(GenerationConfig generation, read_generation_config(dir));
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace rota {

struct GenerationConfig {
  std::vector<int32_t> eos_token_ids;
  std::optional<int32_t> bos_token_id;
  std::optional<int32_t> pad_token_id;
  std::optional<bool> do_sample;
  std::optional<double> temperature;         // >= 0
  std::optional<double> top_p;               // (0, 1]
  std::optional<double> min_p;               // [0, 1]
  std::optional<int64_t> top_k;              // >= 0; 0: all
  std::optional<double> repetition_penalty;  // > 0
  std::optional<int64_t> max_new_tokens;     // >= 1
};

Result<GenerationConfig> read_generation_config(const std::string& model_dir);
Result<GenerationConfig> parse_generation_config(const nlohmann::json& config,
                                                 std::string_view source);

}  // namespace rota
