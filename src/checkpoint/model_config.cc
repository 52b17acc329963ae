#include "checkpoint/model_config.h"

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "checkpoint/json_fields.h"
#include "checkpoint/json_file.h"
#include "checkpoint/nemotron_h_config.h"
#include "checkpoint/quant_config.h"
#include "checkpoint/rope_config.h"

namespace rota {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Far beyond every published model, and small enough that no product below overflows.
constexpr IntegerRange kWidth{1, 1 << 20};
constexpr IntegerRange kLayers{1, 1024};
constexpr IntegerRange kHeads{1, 4096};
constexpr IntegerRange kHeadDim{2, 4096};
constexpr IntegerRange kVocab{1, 1 << 24};
constexpr IntegerRange kExperts{1, 4096};
constexpr IntegerRange kPositions{1, (int64_t{1} << 31) - 1};
constexpr int64_t kMaxExpertsOfAllLayers = 1 << 18;
constexpr NumberRange kEpsilon{0, 1, true};
constexpr NumberRange kPositive{0, 1e30, true};

Result<Architecture> parse_architecture(JsonFields& f) {
  const std::string type = f.text("model_type");
  ROTA_RETURN_IF_ERROR(f.status());
  for (const Architecture known : {Architecture::kGptOss, Architecture::kMixtral,
                                   Architecture::kQwen3Moe, Architecture::kNemotronH}) {
    if (type == to_string(known)) return known;
  }
  return error(StatusCode::kUnsupported,
               "{}: model_type is '{}', expected one of: gpt_oss, mixtral, qwen3_moe, nemotron_h",
               f.path(), shown_text(type));
}

// torch_dtype in older files, dtype in newer ones; BF16 if neither says.
DType parse_dtype_of(JsonFields& f) {
  const std::string_view name = f.has("dtype") ? "dtype" : "torch_dtype";
  const std::string text = f.text_or(name, "bfloat16");
  if (text == "bfloat16" || text == "auto") return DType::kBf16;
  f.fail(error(StatusCode::kUnsupported, "{}: {} is '{}', expected bfloat16", f.path(), name,
               shown_text(text)));
  return DType::kBf16;
}

void parse_sizes(JsonFields& f, ModelConfig& config) {
  config.hidden = f.integer("hidden_size", kWidth);
  if (config.architecture == Architecture::kNemotronH) {
    parse_layer_kinds(f, config, kLayers);
  } else {
    config.layers = f.integer("num_hidden_layers", kLayers);
    config.layer_kinds.assign(static_cast<size_t>(config.layers), LayerKind::kAttentionThenMoe);
  }
  config.vocab = f.integer("vocab_size", kVocab);
  config.max_position = f.integer("max_position_embeddings", kPositions);
  const bool nemotron = config.architecture == Architecture::kNemotronH;
  config.rms_eps = f.number(nemotron ? "layer_norm_epsilon" : "rms_norm_eps", kEpsilon);
  config.tie_word_embeddings = f.flag_or("tie_word_embeddings", false);
}

void parse_heads(JsonFields& f, ModelConfig& config) {
  config.heads = f.integer("num_attention_heads", kHeads);
  config.kv_heads = f.integer_or("num_key_value_heads", kHeads, config.heads);
  if (!f.status().ok()) return;
  if (config.heads % config.kv_heads != 0) {
    f.fail("num_key_value_heads",
           fmt::format("a divisor of num_attention_heads ({})", config.heads));
  }
  if (f.has("head_dim")) {
    config.head_dim = f.integer("head_dim", kHeadDim);
  } else if (config.hidden % config.heads == 0) {
    config.head_dim = config.hidden / config.heads;
  } else {
    f.fail("head_dim", fmt::format("a number: hidden_size {} does not divide by {} heads",
                                   config.hidden, config.heads));
  }
  if (f.status().ok() && config.head_dim % 2 != 0) {
    f.fail(invalid_argument("{}: head_dim is {}, expected an even number: rope turns pairs",
                            f.path(), config.head_dim));
  }
}

// layer_types, or the architecture's rule where it is absent.
void parse_attention_kinds(JsonFields& f, ModelConfig& config) {
  const bool gpt_oss = config.architecture == Architecture::kGptOss;
  // Qwen's files name a window that is turned off.
  const bool turned_off =
      config.architecture == Architecture::kQwen3Moe && !f.flag_or("use_sliding_window", false);
  const bool window_given = !turned_off && f.has("sliding_window");
  config.sliding_window = window_given ? f.integer_or("sliding_window", kPositions, 0) : 0;
  const auto names = f.texts_or_none("layer_types");
  if (!f.status().ok()) return;
  if (!f.has("layer_types")) {
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      const bool slides = gpt_oss ? layer % 2 == 0 : window_given;
      config.attention.push_back(slides ? AttentionKind::kSliding : AttentionKind::kFull);
    }
  } else if (static_cast<int64_t>(names.size()) != config.layers) {
    f.fail(invalid_argument("{}: layer_types has {} entries, expected num_hidden_layers = {}",
                            f.path(), names.size(), config.layers));
  }
  for (const std::string& name : names) {
    if (name != "sliding_attention" && name != "full_attention") {
      f.fail(error(StatusCode::kUnsupported,
                   "{}: layer_types has '{}', expected sliding_attention or full_attention",
                   f.path(), shown_text(name)));
      return;
    }
    config.attention.push_back(name == "sliding_attention" ? AttentionKind::kSliding
                                                           : AttentionKind::kFull);
  }
  for (size_t layer = 0; layer < config.attention.size(); ++layer) {
    if (!config.has_attention(static_cast<int64_t>(layer))) {
      config.attention[layer] = AttentionKind::kNone;
    }
  }
  bool any_slides = false;
  for (const AttentionKind kind : config.attention) any_slides |= kind == AttentionKind::kSliding;
  if (any_slides && !window_given) f.fail("sliding_window", "a number: layers slide");
  if (!any_slides) config.sliding_window = 0;
}

std::string_view name_of_expert_count(Architecture architecture) {
  switch (architecture) {
    case Architecture::kGptOss:
    case Architecture::kMixtral:
      return "num_local_experts";
    case Architecture::kQwen3Moe:
      return "num_experts";
    case Architecture::kNemotronH:
      return "n_routed_experts";
  }
  return "num_experts";
}

void parse_experts(JsonFields& f, ModelConfig& config) {
  const bool moe_size = config.architecture == Architecture::kQwen3Moe ||
                        config.architecture == Architecture::kNemotronH;
  const std::string_view experts = name_of_expert_count(config.architecture);
  config.experts = f.integer(experts, kExperts);
  const auto used = f.maybe_integer("num_experts_per_tok", {1, config.experts});
  const auto also = f.maybe_integer("experts_per_token", {1, config.experts});
  if (!used && !also) f.fail("num_experts_per_tok", "an integer");
  if (used && also && *used != *also) {
    f.fail("experts_per_token", fmt::format("the same as num_experts_per_tok ({})", *used));
  }
  config.top_k = used ? *used : also.value_or(1);
  config.intermediate = f.integer(moe_size ? "moe_intermediate_size" : "intermediate_size", kWidth);
  if (config.layers * config.experts > kMaxExpertsOfAllLayers) {
    f.fail(experts, fmt::format("at most {} in {} layers", kMaxExpertsOfAllLayers / config.layers,
                                config.layers));
  }
  if (const std::string act = f.text_or("hidden_act", "silu"); act != "silu") {
    f.fail(error(StatusCode::kUnsupported, "{}: hidden_act is '{}', expected silu", f.path(),
                 shown_text(act)));
  }
}

// A special token that the vocabulary does not have can never come: a checkpoint whose vocabulary
// was cut still runs.
bool in_vocabulary(const JsonFields& f, const ModelConfig& config, const char* field, int64_t id) {
  if (id < config.vocab) return true;
  log::warning("{}: {} {} is not below vocab_size ({}) and is left out", f.path(), field, id,
               config.vocab);
  return false;
}

void parse_token_ids(JsonFields& f, ModelConfig& config) {
  constexpr IntegerRange kToken{0, std::numeric_limits<int32_t>::max()};
  for (const int64_t id : f.integers("eos_token_id", kToken)) {
    if (in_vocabulary(f, config, "eos_token_id", id)) {
      config.eos_token_ids.push_back(static_cast<int32_t>(id));
    }
  }
  if (const auto id = f.maybe_integer("bos_token_id", kToken);
      id && in_vocabulary(f, config, "bos_token_id", *id)) {
    config.bos_token_id = static_cast<int32_t>(*id);
  }
  // Some files say -1 for "none".
  const auto pad = f.maybe_integer("pad_token_id", {-1, kToken.most});
  if (pad && *pad >= 0 && in_vocabulary(f, config, "pad_token_id", *pad)) {
    config.pad_token_id = static_cast<int32_t>(*pad);
  }
}

void parse_gpt_oss(JsonFields& f, ModelConfig& config) {
  config.attention_bias = f.flag_or("attention_bias", true);
  config.attention_sinks = true;
  config.activation = Activation::kClampedSwiglu;
  config.swiglu_limit = f.number_or("swiglu_limit", kPositive, 7.0);
  config.expert_bias = true;
  config.router_bias = true;
}

void parse_mixtral(JsonFields& f, ModelConfig& config) {
  config.activation = Activation::kSilu;
  if (f.flag_or("attention_bias", false)) {
    f.fail(error(StatusCode::kUnsupported, "{}: attention_bias is true, expected false for mixtral",
                 f.path()));
  }
}

void parse_qwen3_moe(JsonFields& f, ModelConfig& config) {
  config.activation = Activation::kSilu;
  config.attention_bias = f.flag_or("attention_bias", false);
  config.qk_norm = true;
  config.norm_topk_prob = f.flag_or("norm_topk_prob", false);
  const int64_t step = f.integer_or("decoder_sparse_step", kLayers, 1);
  if (step != 1 || !f.integers("mlp_only_layers", {0, kLayers.most}).empty()) {
    f.fail(
        error(StatusCode::kUnsupported,
              "{}: decoder_sparse_step is {} or mlp_only_layers names layers, expected a mixture "
              "in every layer (1 and [])",
              f.path(), step));
  }
}

void deep_merge(json& base, const json& overrides) {
  for (const auto& [key, value] : overrides.items()) {
    json& slot = base[key];
    if (slot.is_object() && value.is_object()) {
      deep_merge(slot, value);  // as deep as parse_json allows
    } else {
      slot = value;
    }
  }
}

// An object; without overrides an empty one.
Result<json> parse_overrides(std::string_view overrides) {
  if (overrides.empty()) return json::object();
  constexpr std::string_view kFlag = "--hf-overrides";
  ROTA_ASSIGN_OR_RETURN(json parsed, parse_json(kFlag, overrides));
  if (!parsed.is_object()) {
    return invalid_argument("{}: is {}, expected a JSON object", kFlag, shown(parsed));
  }
  return parsed;
}

// hf_quant_config.json says the same, and mixed precision names tens of thousands of modules.
void drop_modelopt(json& document) {
  const auto entry = document.find("quantization_config");
  if (entry == document.end() || !entry->is_object()) return;
  const auto method = entry->find("quant_method");
  if (method != entry->end() && *method == "modelopt") document.erase(entry);
}

}  // namespace

std::string_view to_string(Architecture architecture) {
  switch (architecture) {
    case Architecture::kGptOss:
      return "gpt_oss";
    case Architecture::kMixtral:
      return "mixtral";
    case Architecture::kQwen3Moe:
      return "qwen3_moe";
    case Architecture::kNemotronH:
      return "nemotron_h";
  }
  return "unknown";
}

bool ModelConfig::has_attention(int64_t layer) const {
  const LayerKind kind = layer_kinds[static_cast<size_t>(layer)];
  return kind == LayerKind::kAttentionThenMoe || kind == LayerKind::kAttention;
}

bool ModelConfig::has_moe(int64_t layer) const {
  const LayerKind kind = layer_kinds[static_cast<size_t>(layer)];
  return kind == LayerKind::kAttentionThenMoe || kind == LayerKind::kMoe;
}

bool ModelConfig::has_mamba(int64_t layer) const {
  return layer_kinds[static_cast<size_t>(layer)] == LayerKind::kMamba;
}

int64_t ModelConfig::moe_layers() const {
  int64_t count = 0;
  for (int64_t layer = 0; layer < layers; ++layer) count += has_moe(layer) ? 1 : 0;
  return count;
}

Result<ModelConfig> parse_model_config(const json& document, std::string_view source) {
  JsonFields f(document, std::string(source));
  ROTA_RETURN_IF_ERROR(f.status());
  ModelConfig config;
  ROTA_ASSIGN_OR_RETURN(config.architecture, parse_architecture(f));
  config.dtype = parse_dtype_of(f);
  parse_sizes(f, config);
  parse_heads(f, config);
  ROTA_RETURN_IF_ERROR(f.status());
  parse_attention_kinds(f, config);
  if (config.architecture == Architecture::kNemotronH) {
    config.rope.type = RopeType::kNone;  // its files name a rope_theta that is not used
  } else {
    config.rope = parse_rope(f, config);
  }
  parse_experts(f, config);
  parse_token_ids(f, config);
  switch (config.architecture) {
    case Architecture::kGptOss:
      parse_gpt_oss(f, config);
      break;
    case Architecture::kMixtral:
      parse_mixtral(f, config);
      break;
    case Architecture::kQwen3Moe:
      parse_qwen3_moe(f, config);
      break;
    case Architecture::kNemotronH:
      parse_nemotron_h(f, config);
      break;
  }
  ROTA_RETURN_IF_ERROR(f.status());
  ROTA_ASSIGN_OR_RETURN(config.quant, parse_quantization_config(document, source));
  ROTA_RETURN_IF_ERROR(resolve_quantization(config, source));
  return config;
}

Result<json> apply_overrides(json config, std::string_view overrides) {
  ROTA_ASSIGN_OR_RETURN(const json parsed, parse_overrides(overrides));
  if (config.is_object()) deep_merge(config, parsed);
  return config;
}

Result<ModelConfig> read_model_config(const std::string& model_dir, const ConfigOptions& options) {
  const std::string path = fs::path(model_dir) / "config.json";
  ROTA_ASSIGN_OR_RETURN(json document, read_json_file(path));
  ROTA_ASSIGN_OR_RETURN(const json overrides, parse_overrides(options.hf_overrides));
  if (document.is_object()) deep_merge(document, overrides);
  std::optional<QuantConfig> quant;
  if (!overrides.contains("quantization_config")) {
    ROTA_ASSIGN_OR_RETURN(quant, read_hf_quant_config(model_dir));
  }
  if (quant) drop_modelopt(document);
  ROTA_ASSIGN_OR_RETURN(ModelConfig config, parse_model_config(document, path));
  if (quant) {
    config.quant = std::move(*quant);
    ROTA_RETURN_IF_ERROR(resolve_quantization(config, path));
  }
  return config;
}

}  // namespace rota
