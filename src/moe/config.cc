#include "moe/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "checkpoint/expert_modules.h"
#include "quant/mxfp4.h"
#include "quant/nvfp4.h"

namespace rota {

std::string_view to_string(RouterKind kind) {
  switch (kind) {
    case RouterKind::kTopkSoftmax:
      return "topk_softmax";
    case RouterKind::kSoftmaxTopk:
      return "softmax_topk";
    case RouterKind::kSigmoidBiasGroups:
      return "sigmoid_bias_groups";
  }
  return "unknown";
}

std::string_view to_string(ExpertActivation activation) {
  switch (activation) {
    case ExpertActivation::kSwigluOai:
      return "swiglu_oai";
    case ExpertActivation::kSiluMul:
      return "silu_mul";
    case ExpertActivation::kRelu2:
      return "relu2";
  }
  return "unknown";
}

namespace {

// Where the inside of shared experts may be cut: their format may differ from layer to layer.
int64_t shared_block(const ModelConfig& config) {
  int64_t block = 1;
  for (int64_t layer = 0; layer < config.layers && config.shared_intermediate > 0; ++layer) {
    const MoeTensorNames names = moe_tensor_names(config.architecture, layer);
    const LinearFormat up = config.quant.format_of(names.shared_up);
    const LinearFormat down = config.quant.format_of(names.shared_down);
    const bool nvfp4 = down.code == LinearCode::kNvfp4;
    for (const int64_t one : {up.block_out, down.block_in, nvfp4 ? kNvfp4BlockElements : 1}) {
      block = std::lcm(block, std::max<int64_t>(1, one));
    }
  }
  return block;
}

}  // namespace

MoeConfig moe_config(const ModelConfig& config) {
  MoeConfig out;
  out.hidden = config.hidden;
  out.intermediate = config.intermediate;
  out.router.experts = config.experts;
  out.router.top_k = config.top_k;
  out.router.renormalise = config.norm_topk_prob;
  out.router.scaling_factor = static_cast<float>(config.routed_scaling_factor);
  out.router.groups = config.expert_groups;
  out.router.groups_kept = config.expert_groups_kept;
  out.router_correction_bias = config.router_correction_bias;
  out.shared_intermediate = config.shared_intermediate;
  out.shared_block = shared_block(config);
  out.latent = config.latent;
  out.router_bias = config.router_bias;
  out.expert_bias = config.expert_bias;
  if (config.activation == Activation::kClampedSwiglu) {
    out.activation = ExpertActivation::kSwigluOai;
    out.swiglu_limit = static_cast<float>(config.swiglu_limit);
  } else if (config.activation == Activation::kRelu2) {
    out.activation = ExpertActivation::kRelu2;
  }
  switch (config.architecture) {
    case Architecture::kGptOss:
      out.router.kind = RouterKind::kTopkSoftmax;
      out.interleaved = true;
      // The BF16 checkpoint stores [E, in, out], the MXFP4 one [E, out, in].
      out.order = WeightOrder::kInOut;
      break;
    case Architecture::kMixtral:
    case Architecture::kQwen3Moe:
      out.router.kind = RouterKind::kSoftmaxTopk;
      break;
    case Architecture::kNemotronH:
      out.router.kind = RouterKind::kSigmoidBiasGroups;
      break;
  }
  out.linear = config.expert_format;
  switch (config.expert_format.code) {
    case LinearCode::kPlain:
      return out;
    case LinearCode::kMxfp4:
      out.format = WeightFormat::kMxfp4;
      break;
    case LinearCode::kFp8:
      out.format = WeightFormat::kFp8;
      break;
    case LinearCode::kNvfp4:
      out.format = WeightFormat::kNvfp4;
      break;
  }
  out.order = WeightOrder::kOutIn;
  return out;
}

int64_t MoeConfig::code_block() const {
  if (format == WeightFormat::kMxfp4) return kMxfp4BlockElements;
  return format == WeightFormat::kNvfp4 ? kNvfp4BlockElements : 1;
}

int64_t MoeConfig::shard_block() const {
  return std::max({code_block(), linear.block_in, linear.block_out});
}

MoeTensorNames moe_tensor_names(Architecture architecture, int64_t layer) {
  MoeTensorNames names;
  switch (architecture) {
    case Architecture::kGptOss: {
      const std::string mlp = fmt::format("model.layers.{}.mlp.", layer);
      names.stacked = true;
      names.gate_up = mlp + "experts.gate_up_proj";
      names.down = mlp + "experts.down_proj";
      names.router_weight = mlp + "router.weight";
      names.router_bias = mlp + "router.bias";
      break;
    }
    case Architecture::kMixtral:
    case Architecture::kQwen3Moe: {
      const ExpertModules modules = expert_modules(architecture, layer, "{}");
      names.gate = modules.gate;
      names.up = modules.up;
      names.down = modules.down;
      const bool mixtral = architecture == Architecture::kMixtral;
      names.router_weight = fmt::format("model.layers.{}.{}.gate.weight", layer,
                                        mixtral ? "block_sparse_moe" : "mlp");
      break;
    }
    case Architecture::kNemotronH: {
      const std::string mixer = fmt::format("backbone.layers.{}.mixer.", layer);
      const ExpertModules modules = expert_modules(architecture, layer, "{}");
      names.up = modules.up;
      names.down = modules.down;
      names.router_weight = mixer + "gate.weight";
      names.correction_bias = mixer + "gate.e_score_correction_bias";
      names.shared_up = mixer + "shared_experts.up_proj";
      names.shared_down = mixer + "shared_experts.down_proj";
      names.latent_in = mixer + "fc1_latent_proj";
      names.latent_out = mixer + "fc2_latent_proj";
      break;
    }
  }
  return names;
}

}  // namespace rota
