#include "checkpoint/expected_tensors.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "base/log.h"
#include "checkpoint/expert_modules.h"
#include "quant/mxfp4.h"

namespace rota {
namespace {

class SpecList {
 public:
  enum class Experts { kNone, kAll };
  SpecList(const ModelConfig& config, Experts experts) : c_(config), experts_(experts) {
    if (c_.architecture == Architecture::kNemotronH) {
      add_nemotron_h();
    } else {
      add_transformer();
    }
  }

  std::vector<TensorSpec> specs() && { return std::move(specs_); }
  // Of those that are not experts'.
  std::vector<LinearSource> dense() && { return std::move(dense_); }

 private:
  void add_transformer() {
    add("model.embed_tokens.weight", {c_.vocab, c_.hidden});
    for (int64_t layer = 0; layer < c_.layers; ++layer) {
      const std::string prefix = fmt::format("model.layers.{}.", layer);
      add(prefix + "input_layernorm.weight", {c_.hidden});
      add(prefix + "post_attention_layernorm.weight", {c_.hidden});
      add_attention(prefix + "self_attn.");
      switch (c_.architecture) {
        case Architecture::kGptOss:
          add_gpt_oss_moe(prefix + "mlp.");
          break;
        case Architecture::kMixtral:
          add_separate_experts(layer, prefix + "block_sparse_moe.gate");
          break;
        case Architecture::kQwen3Moe:
          add_separate_experts(layer, prefix + "mlp.gate");
          break;
        case Architecture::kNemotronH:
          break;
      }
    }
    add("model.norm.weight", {c_.hidden});
    if (!c_.tie_word_embeddings) add_linear("lm_head", c_.vocab, c_.hidden, false);
  }

  void add_nemotron_h() {
    add("backbone.embeddings.weight", {c_.vocab, c_.hidden});
    for (int64_t layer = 0; layer < c_.layers; ++layer) {
      const std::string prefix = fmt::format("backbone.layers.{}.", layer);
      add(prefix + "norm.weight", {c_.hidden});
      if (c_.has_mamba(layer)) add_mamba(prefix + "mixer.");
      if (c_.has_attention(layer)) add_attention(prefix + "mixer.");
      if (c_.has_moe(layer)) add_nemotron_moe(layer, prefix + "mixer.");
    }
    add("backbone.norm_f.weight", {c_.hidden});
    if (!c_.tie_word_embeddings) add_linear("lm_head", c_.vocab, c_.hidden, false);
  }

  void add_mamba(const std::string& prefix) {
    const MambaConfig& m = c_.mamba;
    for (const std::string_view of_heads : {"A_log", "D", "dt_bias"}) {
      add(fmt::format("{}{}", prefix, of_heads), {m.heads});
    }
    add(prefix + "conv1d.weight", {m.conv_width(), 1, m.conv_kernel});
    add(prefix + "conv1d.bias", {m.conv_width()});
    add(prefix + "norm.weight", {m.inner()});
    add_linear(prefix + "in_proj", m.projected(), c_.hidden, false);
    add_linear(prefix + "out_proj", c_.hidden, m.inner(), false);
  }

  void add_nemotron_moe(int64_t layer, const std::string& prefix) {
    add(prefix + "gate.weight", DType::kF32, {c_.experts, c_.hidden});
    add(prefix + "gate.e_score_correction_bias", DType::kF32, {c_.experts});
    add_experts(layer);
    if (c_.shared_intermediate > 0) {
      add_linear(prefix + "shared_experts.up_proj", c_.shared_intermediate, c_.hidden, false);
      add_linear(prefix + "shared_experts.down_proj", c_.hidden, c_.shared_intermediate, false);
    }
    if (c_.latent > 0) {
      add_linear(prefix + "fc1_latent_proj", c_.latent, c_.hidden, false);
      add_linear(prefix + "fc2_latent_proj", c_.hidden, c_.latent, false);
    }
  }

  void add(std::string name, std::vector<int64_t> shape) {
    add(std::move(name), c_.dtype, std::move(shape));
  }
  void add(std::string name, DType dtype, std::vector<int64_t> shape) {
    specs_.push_back({std::move(name), dtype, std::move(shape)});
  }

  void add_attention(const std::string& prefix) {
    const int64_t q = c_.heads * c_.head_dim;
    const int64_t kv = c_.kv_heads * c_.head_dim;
    add_linear(prefix + "q_proj", q, c_.hidden, c_.attention_bias);
    add_linear(prefix + "k_proj", kv, c_.hidden, c_.attention_bias);
    add_linear(prefix + "v_proj", kv, c_.hidden, c_.attention_bias);
    add_linear(prefix + "o_proj", c_.hidden, q, c_.attention_bias);
    if (c_.attention_sinks) add(prefix + "sinks", {c_.heads});
    if (c_.qk_norm) {
      add(prefix + "q_norm.weight", {c_.head_dim});
      add(prefix + "k_norm.weight", {c_.head_dim});
    }
  }

  void add_linear(const std::string& name, int64_t outputs, int64_t inputs, bool bias) {
    dense_.push_back(
        {.module = name, .format = c_.quant.format_of(name), .out = outputs, .in = inputs});
    add_linear(dense_.back());
    if (bias) add(name + ".bias", {outputs});
  }
  void add_linear(const LinearSource& linear) {
    for (TensorSpec& spec : linear_specs(linear)) specs_.push_back(std::move(spec));
  }

  void add_gpt_oss_moe(const std::string& prefix) {
    add(prefix + "router.weight", {c_.experts, c_.hidden});
    if (c_.router_bias) add(prefix + "router.bias", {c_.experts});
    add_stacked(prefix + "experts.gate_up_proj", 2 * c_.intermediate, c_.hidden);
    add_stacked(prefix + "experts.down_proj", c_.hidden, c_.intermediate);
  }

  void add_stacked(const std::string& name, int64_t outputs, int64_t inputs) {
    if (c_.quant.method == QuantMethod::kMxfp4) {
      const int64_t blocks = inputs / kMxfp4BlockElements;
      add(name + "_blocks", DType::kU8, {c_.experts, outputs, blocks, kMxfp4BlockBytes.count});
      add(name + "_scales", DType::kU8, {c_.experts, outputs, blocks});
    } else {
      add(name, {c_.experts, inputs, outputs});
    }
    if (c_.expert_bias) add(name + "_bias", {c_.experts, outputs});
  }

  void add_separate_experts(int64_t layer, const std::string& router) {
    add(router + ".weight", {c_.experts, c_.hidden});
    add_experts(layer);
  }
  void add_experts(int64_t layer) {
    if (experts_ == Experts::kNone) return;
    const int64_t width = c_.experts_hidden();
    const auto add_expert = [&](const std::string& name, int64_t outputs, int64_t inputs) {
      if (name.empty()) return;
      add_linear({.module = name, .format = c_.expert_format, .out = outputs, .in = inputs});
    };
    for (int64_t expert = 0; expert < c_.experts; ++expert) {
      const ExpertModules names = expert_modules(c_.architecture, layer, std::to_string(expert));
      add_expert(names.gate, c_.intermediate, width);
      add_expert(names.down, width, c_.intermediate);
      add_expert(names.up, c_.intermediate, width);
    }
  }

  const ModelConfig& c_;
  const Experts experts_;
  std::vector<TensorSpec> specs_;
  std::vector<LinearSource> dense_;
};

// config.json decides how experts are stored; weights in the other form belong to another
// config.json.
Status check_expert_format(const ModelConfig& config, const Checkpoint& checkpoint) {
  if (config.architecture != Architecture::kGptOss) return {};
  constexpr std::string_view kPlain = "model.layers.0.mlp.experts.gate_up_proj";
  const std::string blocks = fmt::format("{}_blocks", kPlain);
  const bool says_mxfp4 = config.quant.method == QuantMethod::kMxfp4;
  if (!says_mxfp4 && checkpoint.find(blocks) != nullptr) {
    return invalid_argument(
        "config.json has no quantization_config, but the weights are MXFP4 ({} in {}); the two do "
        "not belong together",
        blocks, checkpoint.find(blocks)->file);
  }
  if (says_mxfp4 && checkpoint.find(blocks) == nullptr && checkpoint.find(kPlain) != nullptr) {
    return invalid_argument(
        "config.json says quant_method mxfp4, but the experts are not quantised ({} in {}); the "
        "two "
        "do not belong together",
        kPlain, checkpoint.find(kPlain)->file);
  }
  return {};
}

// What is stored in float32 to lose nothing (a router) may be in BF16 too.
Result<TensorInfo> require_either(const Checkpoint& checkpoint, const TensorSpec& spec) {
  if (spec.dtype != DType::kF32 || spec.is_factor) return checkpoint.require(spec);
  constexpr std::array<DType, 2> kEither = {DType::kF32, DType::kBf16};
  return checkpoint.require(spec.name, kEither, spec.shape);
}

// Tensors that this engine has no use for, and knows why: draft layers, factors of quantised
// activations and of a quantised KV cache (both are kept in higher precision here), a rope table.
bool is_known_and_unused(std::string_view name) {
  constexpr std::array<std::string_view, 7> kEndings = {
      ".input_scale",  ".input_activation_scale", ".k_scale", ".v_scale", ".kv_scale",
      ".output_scale", ".rotary_emb.inv_freq"};
  return name.starts_with("mtp.") ||
         std::any_of(kEndings.begin(), kEndings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

// A tensor that nothing reads means that the model is not the one that we take it for.
Status check_unused(std::span<const TensorSpec> specs, const Checkpoint& checkpoint,
                    const ModelConfig& config) {
  std::unordered_set<std::string_view> used;
  for (const TensorSpec& spec : specs) used.insert(spec.name);
  int64_t known = 0, unknown = 0;
  const TensorInfo* first = nullptr;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (used.contains(tensor.name)) continue;
    const bool fine = is_known_and_unused(tensor.name);
    (fine ? known : unknown)++;
    if (!fine && first == nullptr) first = &tensor;
  }
  if (first != nullptr) {
    return invalid_argument(
        "{}: tensor {} {} has no place in {} as config.json describes it (the first of {} such "
        "tensors); config.json and the weights do not belong together",
        first->file, first->name, describe(first->dtype, first->shape),
        to_string(config.architecture), unknown);
  }
  if (known > 0) {
    log::info("{} tensors of the weights are not needed (scales of activations, draft layers)",
              known);
  }
  return {};
}

}  // namespace

std::vector<TensorSpec> expected_tensors(const ModelConfig& config) {
  return SpecList(config, SpecList::Experts::kAll).specs();
}

std::vector<LinearSource> dense_linears(const ModelConfig& config) {
  return SpecList(config, SpecList::Experts::kNone).dense();
}

Status check_tensors(const ModelConfig& config, const Checkpoint& checkpoint) {
  ROTA_RETURN_IF_ERROR(check_expert_format(config, checkpoint));
  const auto specs = expected_tensors(config);
  const auto missing = std::count_if(specs.begin(), specs.end(), [&](const TensorSpec& spec) {
    return checkpoint.find(spec.name) == nullptr;
  });
  for (const TensorSpec& spec : specs) {
    const auto found = require_either(checkpoint, spec);
    if (found.ok()) continue;
    if (missing < 2 || found.status().code() != StatusCode::kNotFound) return found.status();
    return error(found.status().code(), "{} (the first of {} missing tensors)",
                 found.status().message(), missing);
  }
  return check_unused(specs, checkpoint, config);
}

}  // namespace rota
