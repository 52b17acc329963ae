#include "engine/tensor_census.h"

#include <gtest/gtest.h>

#include <vector>

namespace rota {
namespace {

TEST(TensorCensus, KnowsWhatATensorIsForInEveryLayout) {
  const std::vector<std::pair<const char*, ModelPart>> expected = {
      {"model.embed_tokens.weight", ModelPart::kEmbedding},
      {"backbone.embeddings.weight", ModelPart::kEmbedding},
      {"lm_head.weight", ModelPart::kLmHead},
      {"model.norm.weight", ModelPart::kOther},
      {"backbone.norm_f.weight", ModelPart::kOther},
      {"model.layers.0.input_layernorm.weight", ModelPart::kOther},
      {"model.layers.0.self_attn.q_proj.weight", ModelPart::kQueries},
      {"model.layers.0.self_attn.q_norm.weight", ModelPart::kOther},
      {"model.layers.0.self_attn.o_proj.bias", ModelPart::kQueries},
      {"model.layers.0.self_attn.sinks", ModelPart::kQueries},
      {"model.layers.0.self_attn.k_proj.weight_scale_inv", ModelPart::kKeyValues},
      {"backbone.layers.5.mixer.v_proj.weight", ModelPart::kKeyValues},
      {"model.layers.0.mlp.router.bias", ModelPart::kRouter},
      {"model.layers.0.mlp.gate.weight", ModelPart::kRouter},
      {"model.layers.0.block_sparse_moe.gate.weight", ModelPart::kRouter},
      {"backbone.layers.1.mixer.gate.e_score_correction_bias", ModelPart::kRouter},
      {"model.layers.0.mlp.experts.gate_up_proj_blocks", ModelPart::kExperts},
      {"model.layers.0.mlp.experts.7.gate_proj.weight", ModelPart::kExperts},
      {"model.layers.0.block_sparse_moe.experts.3.w1.weight", ModelPart::kExperts},
      {"backbone.layers.1.mixer.experts.9.up_proj.weight_scale_2", ModelPart::kExperts},
      {"backbone.layers.1.mixer.shared_experts.up_proj.weight", ModelPart::kShared},
      {"backbone.layers.1.mixer.fc1_latent_proj.weight", ModelPart::kLatent},
      {"backbone.layers.0.mixer.in_proj.weight", ModelPart::kRecurrent},
      {"backbone.layers.0.mixer.conv1d.bias", ModelPart::kRecurrent},
      {"backbone.layers.0.mixer.A_log", ModelPart::kRecurrent},
      {"backbone.layers.0.mixer.D", ModelPart::kRecurrent},
      {"backbone.layers.0.mixer.norm.weight", ModelPart::kOther},
  };
  for (const auto& [name, part] : expected) EXPECT_EQ(part_of(name), part) << name;
}

TEST(TensorCensus, CountsElementsOfPackedFormatsAndNoScales) {
  const std::vector<TensorSpec> tensors = {
      {"m.mlp.experts.down_proj_blocks", DType::kU8, {2, 64, 3, 16}},
      {"m.mlp.experts.down_proj_scales", DType::kU8, {2, 64, 3}},
      {"m.mlp.experts.down_proj_bias", DType::kBf16, {2, 64}},
      {"m.mixer.experts.0.up_proj.weight", DType::kU8, {8, 16}},
      {"m.mixer.experts.0.up_proj.weight_scale", DType::kF8E4M3, {8, 2}},
      {"m.mixer.experts.0.up_proj.weight_scale_2", DType::kF32, {}},
      {"m.mlp.router.weight", DType::kBf16, {2, 96}},
      {"m.mlp.router.bias", DType::kBf16, {2}},
  };
  const TensorCensus census = take_census(tensors);
  const PartSize experts = census[ModelPart::kExperts];
  EXPECT_EQ(experts.weights, 2 * 64 * 96 + 8 * 32);
  EXPECT_EQ(experts.bytes, 2 * 64 * 48 + 2 * 64 * 3 + 2 * 64 * 2 + 8 * 16 + 8 * 2 + 4);
  EXPECT_EQ(census[ModelPart::kRouter].weights, 2 * 96);
  EXPECT_EQ(census.moe_layers, 1);
  EXPECT_EQ(census.bytes, experts.bytes + 2 * 96 * 2 + 2 * 2);
}

}  // namespace
}  // namespace rota
