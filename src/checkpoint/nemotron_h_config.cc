#include "checkpoint/nemotron_h_config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

namespace rota {
namespace {

constexpr IntegerRange kWidth{1, 1 << 20};
constexpr IntegerRange kHeads{1, 4096};
constexpr IntegerRange kHeadDim{1, 4096};
constexpr IntegerRange kConvKernel{2, 16};
constexpr IntegerRange kGroups{1, 64};
constexpr NumberRange kFactor{0, 1e6, true};

constexpr std::string_view kPattern = "hybrid_override_pattern";
constexpr std::string_view kList = "layers_block_type";

struct KindName {
  LayerKind kind;
  char letter;
  std::string_view word;
};
constexpr std::array<KindName, 3> kKindNames = {{{LayerKind::kMamba, 'M', "mamba"},
                                                 {LayerKind::kMoe, 'E', "moe"},
                                                 {LayerKind::kAttention, '*', "attention"}}};

// The whole character of UTF-8 that begins at a byte.
std::string_view character_at(std::string_view text, size_t first) {
  size_t end = first + 1;
  while (end < text.size() && (static_cast<uint8_t>(text[end]) & 0xc0) == 0x80) ++end;
  return text.substr(first, end - first);
}

std::vector<LayerKind> kinds_of_pattern(JsonFields& f) {
  std::vector<LayerKind> kinds;
  const std::string pattern = f.text(kPattern);
  for (const char letter : pattern) {
    const auto known =
        std::find_if(kKindNames.begin(), kKindNames.end(),
                     [letter](const KindName& name) { return name.letter == letter; });
    if (known == kKindNames.end()) {
      f.fail(error(StatusCode::kUnsupported,
                   "{}: {} has '{}' at layer {}, expected M (Mamba2), E (mixture of experts) or * "
                   "(attention)",
                   f.path(), kPattern, shown_text(character_at(pattern, kinds.size())),
                   kinds.size()));
      return {};
    }
    kinds.push_back(known->kind);
  }
  return kinds;
}

std::vector<LayerKind> kinds_of_list(JsonFields& f) {
  std::vector<LayerKind> kinds;
  for (const std::string& word : f.texts_or_none(kList)) {
    const auto known = std::find_if(kKindNames.begin(), kKindNames.end(),
                                    [&word](const KindName& name) { return name.word == word; });
    if (known == kKindNames.end()) {
      f.fail(error(StatusCode::kUnsupported,
                   "{}: {} has '{}' at layer {}, expected mamba, moe or attention", f.path(), kList,
                   shown_text(word), kinds.size()));
      return {};
    }
    kinds.push_back(known->kind);
  }
  return kinds;
}

bool any(const ModelConfig& config, LayerKind kind) {
  return std::count(config.layer_kinds.begin(), config.layer_kinds.end(), kind) > 0;
}

// The kernels' steps are softplus(...), above 0, and are not clamped: a limit that would is
// refused.
void check_time_step_limit(JsonFields& f) {
  constexpr std::string_view kName = "time_step_limit";
  const nlohmann::json* limit = f.find(kName);
  if (limit == nullptr) return;
  const bool clamps_nothing = limit->is_array() && limit->size() == 2 && (*limit)[0].is_number() &&
                              (*limit)[0].get<double>() <= 0 && is_infinity((*limit)[1]);
  if (clamps_nothing) return;
  f.fail(error(StatusCode::kUnsupported,
               "{}: {} is {}, which is not served: the steps of Mamba2 layers are not clamped; "
               "expected [0, Infinity]",
               f.path(), kName, shown(*limit)));
}

void parse_mamba(JsonFields& f, MambaConfig& mamba) {
  mamba.heads = f.integer("mamba_num_heads", kHeads);
  mamba.head_dim = f.integer("mamba_head_dim", kHeadDim);
  mamba.groups = f.integer("n_groups", {1, std::max<int64_t>(1, mamba.heads)});
  mamba.state = f.integer("ssm_state_size", kHeadDim);
  mamba.conv_kernel = f.integer("conv_kernel", kConvKernel);
  if (!f.status().ok()) return;
  if (mamba.heads % mamba.groups != 0) {
    f.fail("n_groups", fmt::format("a divisor of mamba_num_heads ({})", mamba.heads));
  }
  if (mamba.projected() > kWidth.most) {
    f.fail(invalid_argument(
        "{}: mamba_num_heads, mamba_head_dim, n_groups and ssm_state_size make an input projection "
        "of {} rows, expected at most {}",
        f.path(), mamba.projected(), kWidth.most));
  }
}

void parse_router(JsonFields& f, ModelConfig& config) {
  config.router_correction_bias = true;
  config.norm_topk_prob = f.flag_or("norm_topk_prob", true);
  config.routed_scaling_factor = f.number_or("routed_scaling_factor", kFactor, 1);
  config.expert_groups = f.integer_or("n_group", kGroups, 1);
  if (config.experts % config.expert_groups != 0) {
    f.fail("n_group", fmt::format("a divisor of n_routed_experts ({})", config.experts));
  }
  config.expert_groups_kept = f.integer_or("topk_group", {1, config.expert_groups}, 1);
  const int64_t choosable = config.experts / config.expert_groups * config.expert_groups_kept;
  if (config.top_k > choosable) {
    f.fail("num_experts_per_tok", fmt::format("at most {}: the experts of topk_group = {} groups",
                                              choosable, config.expert_groups_kept));
  }
}

void parse_shared_expert(JsonFields& f, ModelConfig& config) {
  const int64_t count = f.integer_or("n_shared_experts", {0, kWidth.most}, 0);
  if (count > 1) {
    f.fail(error(StatusCode::kUnsupported, "{}: n_shared_experts is {}, expected 0 or 1", f.path(),
                 count));
  }
  if (count == 1) {
    config.shared_intermediate = f.integer("moe_shared_expert_intermediate_size", kWidth);
  }
}

void require_text(JsonFields& f, std::string_view name, std::string_view expected) {
  if (const std::string found = f.text_or(name, std::string(expected)); found != expected) {
    f.fail(error(StatusCode::kUnsupported, "{}: {} is '{}', expected {}", f.path(), name,
                 shown_text(found), expected));
  }
}

void require_flag(JsonFields& f, std::string_view name, bool expected) {
  if (f.flag_or(name, expected) != expected) {
    f.fail(error(StatusCode::kUnsupported, "{}: {} is {}, expected {}", f.path(), name, !expected,
                 expected));
  }
}

}  // namespace

void parse_layer_kinds(JsonFields& f, ModelConfig& config, IntegerRange layers) {
  const bool pattern = f.has(kPattern);
  config.layer_kinds = pattern || !f.has(kList) ? kinds_of_pattern(f) : kinds_of_list(f);
  if (!f.status().ok()) return;
  config.layers = static_cast<int64_t>(config.layer_kinds.size());
  const std::string_view source = pattern ? kPattern : kList;
  if (config.layers < layers.least || config.layers > layers.most) {
    f.fail(invalid_argument("{}: {} has {} layers, expected {} to {}", f.path(), source,
                            config.layers, layers.least, layers.most));
    return;
  }
  if (pattern && f.has(kList) && kinds_of_list(f) != config.layer_kinds) {
    f.fail(invalid_argument("{}: {} and {} disagree, expected the same layers or one of the two",
                            f.path(), kPattern, kList));
  }
  if (f.integer_or("num_hidden_layers", layers, config.layers) != config.layers) {
    f.fail("num_hidden_layers", fmt::format("{}, as {} says", config.layers, source));
  }
  if (!any(config, LayerKind::kMoe)) {
    f.fail(error(StatusCode::kUnsupported,
                 "{}: {} has no mixture of experts, expected at least one such layer", f.path(),
                 source));
  }
}

void parse_nemotron_h(JsonFields& f, ModelConfig& config) {
  config.activation = Activation::kRelu2;
  require_text(f, "mlp_hidden_act", "relu2");
  require_flag(f, "mlp_bias", false);
  config.attention_bias = f.flag_or("attention_bias", false);
  if (any(config, LayerKind::kMamba)) {
    require_text(f, "mamba_hidden_act", "silu");
    require_flag(f, "use_bias", false);
    require_flag(f, "mamba_proj_bias", false);
    require_flag(f, "use_conv_bias", true);
    check_time_step_limit(f);
    parse_mamba(f, config.mamba);
  }
  if (!f.status().ok()) return;
  parse_router(f, config);
  parse_shared_expert(f, config);
  config.latent = f.integer_or("moe_latent_size", kWidth, 0);
}

}  // namespace rota
