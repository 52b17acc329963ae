#include "moe/config.h"

#include <fmt/format.h>

#include "base/check.h"

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

MoeConfig moe_config(const ModelConfig& config) {
  MoeConfig out;
  out.hidden = config.hidden;
  out.intermediate = config.intermediate;
  out.router.experts = config.experts;
  out.router.top_k = config.top_k;
  out.router.renormalise = config.norm_topk_prob;
  out.router_bias = config.router_bias;
  out.expert_bias = config.expert_bias;
  if (config.activation == Activation::kClampedSwiglu) {
    out.activation = ExpertActivation::kSwigluOai;
    out.swiglu_limit = static_cast<float>(config.swiglu_limit);
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
  }
  if (config.quant.method == QuantMethod::kMxfp4) {
    out.format = WeightFormat::kMxfp4;
    out.order = WeightOrder::kOutIn;
  }
  return out;
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
    case Architecture::kMixtral: {
      const std::string moe = fmt::format("model.layers.{}.block_sparse_moe.", layer);
      names.gate = moe + "experts.{}.w1.weight";
      names.up = moe + "experts.{}.w3.weight";
      names.down = moe + "experts.{}.w2.weight";
      names.router_weight = moe + "gate.weight";
      break;
    }
    case Architecture::kQwen3Moe: {
      const std::string mlp = fmt::format("model.layers.{}.mlp.", layer);
      names.gate = mlp + "experts.{}.gate_proj.weight";
      names.up = mlp + "experts.{}.up_proj.weight";
      names.down = mlp + "experts.{}.down_proj.weight";
      names.router_weight = mlp + "gate.weight";
      break;
    }
  }
  return names;
}

}  // namespace rota
