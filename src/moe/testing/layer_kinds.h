// For tests: the kinds of mixture layer that a synthetic one may be: formats, layouts, activations,
// routers, and what stands around the experts.
#pragma once

#include <array>

#include "moe/config.h"

namespace rota::testing {

struct LayerKind {
  const char* name;
  WeightFormat format = WeightFormat::kBf16;
  WeightOrder order = WeightOrder::kOutIn;
  bool stacked = false;
  ExpertActivation activation =
      ExpertActivation::kSiluMul;  // kSwigluOai: interleaved, else gate and up apart
  bool bias = false;
  RouterKind router = RouterKind::kSoftmaxTopk;
  // FP8: outputs and inputs that share a factor; 0: all of them.
  int64_t block_out = 0;
  int64_t block_in = 0;
  bool latent = false;  // the experts work in a narrower width
  bool shared = false;  // with shared experts, in BF16

  // Matrices that every rank holds whole.
  bool has_dense() const { return latent || shared; }
};

// As gpt-oss, Mixtral, Qwen3 and Nemotron-H have them, and what lies between.
inline constexpr std::array kLayerKinds = {
    LayerKind{.name = "gpt_oss_mxfp4",
              .format = WeightFormat::kMxfp4,
              .stacked = true,
              .activation = ExpertActivation::kSwigluOai,
              .bias = true,
              .router = RouterKind::kTopkSoftmax},
    LayerKind{.name = "gpt_oss_bf16",
              .order = WeightOrder::kInOut,
              .stacked = true,
              .activation = ExpertActivation::kSwigluOai,
              .bias = true,
              .router = RouterKind::kTopkSoftmax},
    LayerKind{.name = "mixtral_bf16"},
    LayerKind{.name = "each_expert_mxfp4", .format = WeightFormat::kMxfp4, .bias = true},
    LayerKind{.name = "stacked_apart_bf16", .stacked = true, .bias = true},
    LayerKind{.name = "stacked_apart_in_out_bf16", .order = WeightOrder::kInOut, .stacked = true},
    LayerKind{.name = "mixtral_fp8_tensor", .format = WeightFormat::kFp8},
    LayerKind{.name = "fp8_rows", .format = WeightFormat::kFp8, .bias = true, .block_out = 1},
    LayerKind{.name = "qwen3_fp8_blocks",
              .format = WeightFormat::kFp8,
              .block_out = 128,
              .block_in = 128},
    LayerKind{.name = "nvfp4", .format = WeightFormat::kNvfp4},
    LayerKind{.name = "relu2_bf16",
              .activation = ExpertActivation::kRelu2,
              .router = RouterKind::kSigmoidBiasGroups},
    LayerKind{.name = "relu2_nvfp4",
              .format = WeightFormat::kNvfp4,
              .activation = ExpertActivation::kRelu2,
              .router = RouterKind::kSigmoidBiasGroups},
    LayerKind{.name = "relu2_nvfp4_latent",
              .format = WeightFormat::kNvfp4,
              .activation = ExpertActivation::kRelu2,
              .router = RouterKind::kSigmoidBiasGroups,
              .latent = true},
    LayerKind{.name = "relu2_fp8_shared",
              .format = WeightFormat::kFp8,
              .activation = ExpertActivation::kRelu2,
              .router = RouterKind::kSigmoidBiasGroups,
              .shared = true},
    LayerKind{.name = "relu2_bf16_latent_shared",
              .activation = ExpertActivation::kRelu2,
              .router = RouterKind::kSigmoidBiasGroups,
              .latent = true,
              .shared = true},
};

inline LinearFormat linear_format(const LayerKind& kind) {
  LinearFormat linear{.block_out = kind.block_out, .block_in = kind.block_in};
  switch (kind.format) {
    case WeightFormat::kMxfp4:
      linear.code = LinearCode::kMxfp4;
      break;
    case WeightFormat::kFp8:
      linear.code = LinearCode::kFp8;
      linear.named_inverse = kind.block_in > 0;
      break;
    case WeightFormat::kNvfp4:
      linear.code = LinearCode::kNvfp4;
      break;
    case WeightFormat::kBf16:
    case WeightFormat::kFloat32:
      break;
  }
  return linear;
}

}  // namespace rota::testing
