// Any text as config.json, as generation_config.json and as a shard index. What is accepted must be
// usable: the tensors that it implies have sizes. The first byte says whether the text stands alone
// or is merged over a good config, as --hf-overrides are.
#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/check.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/generation_config.h"
#include "checkpoint/json_file.h"
#include "checkpoint/model_config.h"
#include "checkpoint/shard_index.h"

namespace {

constexpr std::string_view kGptOss = R"({"model_type": "gpt_oss", "hidden_size": 160,
  "intermediate_size": 96, "num_local_experts": 8, "num_experts_per_tok": 4, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": 4, "vocab_size": 1024,
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "sliding_window": 128,
  "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
  "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}})";
constexpr std::string_view kMixtral = R"({"model_type": "mixtral", "hidden_size": 72,
  "intermediate_size": 104, "num_local_experts": 6, "num_experts_per_tok": 2, "num_attention_heads": 4,
  "num_hidden_layers": 3, "vocab_size": 2048, "max_position_embeddings": 32768, "rms_norm_eps": 1e-05})";

constexpr std::string_view kNemotronH = R"({"model_type": "nemotron_h", "hidden_size": 112,
  "hybrid_override_pattern": "MEM*E", "moe_intermediate_size": 80, "n_routed_experts": 16,
  "num_experts_per_tok": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
  "mamba_num_heads": 6, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16, "conv_kernel": 4,
  "n_shared_experts": 1, "moe_shared_expert_intermediate_size": 144, "moe_latent_size": 48,
  "vocab_size": 1024, "max_position_embeddings": 262144, "layer_norm_epsilon": 1e-05})";
constexpr std::array<std::string_view, 3> kBases = {kGptOss, kMixtral, kNemotronH};

void check_config(const nlohmann::json& document) {
  const auto config = rota::parse_model_config(document, "fuzz");
  if (!config.ok()) return;
  ROTA_CHECK(config->top_k <= config->experts, "validated");
  ROTA_CHECK(static_cast<int64_t>(config->attention.size()) == config->layers, "validated");
  ROTA_CHECK(static_cast<int64_t>(config->layer_kinds.size()) == config->layers, "validated");
  if (config->layers * config->experts > 128) return;  // fine, but slow to list a million times
  for (const auto& spec : rota::expected_tensors(*config)) {
    const auto bytes = rota::tensor_bytes(spec.dtype, spec.shape);
    ROTA_CHECK(bytes && *bytes > 0, "a tensor has a size");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto parsed = rota::parse_json("fuzz", text);
  if (parsed.ok()) {
    check_config(*parsed);
    static_cast<void>(rota::parse_generation_config(*parsed, "fuzz").ok());
  }
  const auto base = nlohmann::json::parse(kBases[data[0] % kBases.size()]);
  const auto merged = rota::apply_overrides(base, text);
  if (merged.ok()) check_config(*merged);
  static_cast<void>(rota::parse_shard_index("fuzz", text).ok());
  return 0;
}
