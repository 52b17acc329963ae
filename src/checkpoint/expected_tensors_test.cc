#include "checkpoint/expected_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace rota {
namespace {

using ::testing::HasSubstr;

std::string golden(std::string_view model) {
  return fmt::format("{}/tests/goldens/models/{}", ROTA_SOURCE_DIR, model);
}

ModelConfig config_of(std::string_view model, std::string_view overrides = "") {
  auto config = read_model_config(golden(model), {.hf_overrides = std::string(overrides)});
  EXPECT_TRUE(config.ok()) << config.status().message();
  return std::move(config).value();
}

int64_t bytes_of(const std::vector<TensorSpec>& specs) {
  int64_t sum = 0;
  for (const TensorSpec& spec : specs) sum += tensor_bytes(spec.dtype, spec.shape).value_or(0);
  return sum;
}

TEST(ExpectedTensors, AreExactlyThoseOfTheGoldens) {
  for (const char* model : {"gptoss-mxfp4-h160", "gptoss-mxfp4-h288", "gptoss-bf16-h160",
                            "mixtral-bf16-h72", "qwen3-bf16-h160", "nemotron-bf16-h336"}) {
    const ModelConfig config = config_of(model);
    const auto weights = Checkpoint::open(golden(model), {.headers_only = true});
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    const Status status = check_tensors(config, *weights);
    EXPECT_TRUE(status.ok()) << status.message();
    const auto specs = expected_tensors(config);
    EXPECT_EQ(specs.size(), weights->tensors().size()) << model;
    EXPECT_EQ(bytes_of(specs), weights->total_bytes()) << model;
  }
}

// Published sizes: 459 tensors and 13,761,264,768 bytes; 687 and 65,248,815,744.
TEST(ExpectedTensors, MatchThePublishedSizesOfGptOss) {
  constexpr std::string_view k20b = R"({"hidden_size": 2880, "intermediate_size": 2880,
      "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
      "layer_types": null, "num_hidden_layers": 24, "num_local_experts": 32})";
  const auto small = expected_tensors(config_of("gptoss-mxfp4-h160", k20b));
  EXPECT_EQ(small.size(), 459u);
  EXPECT_EQ(bytes_of(small), 13'761'264'768);
  std::string k120b(k20b);
  k120b.replace(k120b.find("24"), 2, "36");
  k120b.replace(k120b.rfind("32"), 2, "128");
  const auto large = expected_tensors(config_of("gptoss-mxfp4-h160", k120b));
  EXPECT_EQ(large.size(), 687u);
  EXPECT_EQ(bytes_of(large), 65'248'815'744);
}

TEST(ExpectedTensors, MatchThePublishedSizeOfMixtral) {
  const auto specs = expected_tensors(config_of("mixtral-bf16-h72", R"({"hidden_size": 4096,
      "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
      "num_local_experts": 8, "num_hidden_layers": 32, "vocab_size": 32000})"));
  EXPECT_EQ(specs.size(), 995u);
  EXPECT_EQ(bytes_of(specs), 93'405'585'408);
}

TEST(ExpectedTensors, MatchThePublishedSizeOfQwen3) {
  const auto specs = expected_tensors(config_of("qwen3-bf16-h160", R"({"hidden_size": 2048,
      "moe_intermediate_size": 768, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
      "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "vocab_size": 151936})"));
  EXPECT_EQ(specs.size(), 18'867u);
  EXPECT_EQ(bytes_of(specs), 61'064'245'248);
}

// Published: the NVFP4 file's 24,147 tensors, of which each of the 5,888 expert, 46 shared and
// 34 Mamba matrices that are quantised has three more than here.
TEST(ExpectedTensors, MatchThePublishedCountOfNemotronNano) {
  const auto specs = expected_tensors(config_of("nemotron-bf16-h336", R"({"hidden_size": 2688,
      "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
      "n_routed_experts": 128, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
      "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128,
      "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
      "num_hidden_layers": 52, "vocab_size": 131072})"));
  EXPECT_EQ(specs.size() + 3 * (5'888 + 46 + 34), 24'147u);
}

TEST(CheckTensors, ARouterMayBeInBf16) {
  const ModelConfig config = config_of("nemotron-bf16-h336");
  auto specs = expected_tensors(config);
  for (TensorSpec& spec : specs) {
    if (spec.name.ends_with("gate.weight")) spec.dtype = DType::kBf16;
  }
  const auto weights = Checkpoint::dummy(specs);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_TRUE(check_tensors(config, *weights).ok());
}

TEST(CheckTensors, DraftLayersAreSkipped) {
  const ModelConfig config = config_of("nemotron-bf16-h336");
  auto specs = expected_tensors(config);
  specs.push_back({"mtp.layers.0.eh_proj.weight", DType::kBf16, {336, 672}});
  const auto weights = Checkpoint::dummy(specs);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_TRUE(check_tensors(config, *weights).ok());
}

TEST(ExpectedTensors, TiedEmbeddingsHaveNoHead) {
  const auto specs =
      expected_tensors(config_of("mixtral-bf16-h72", R"({"tie_word_embeddings": true})"));
  EXPECT_TRUE(std::none_of(specs.begin(), specs.end(),
                           [](const TensorSpec& s) { return s.name == "lm_head.weight"; }));
}

std::string fault(const ModelConfig& config, const std::vector<TensorSpec>& specs) {
  const auto weights = Checkpoint::dummy(specs);
  EXPECT_TRUE(weights.ok()) << weights.status().message();
  return check_tensors(config, *weights).message();
}

TEST(CheckTensors, ExtraTensorsAreTolerated) {
  const ModelConfig config = config_of("gptoss-bf16-h160");
  auto specs = expected_tensors(config);
  specs.push_back({"mtp.extra", DType::kF32, {3}});
  specs.push_back({"model.layers.0.self_attn.k_proj.input_scale", DType::kF32, {}});
  EXPECT_EQ(fault(config, specs), "");
}

TEST(CheckTensors, ATensorWithoutAPlaceIsNamed) {
  const ModelConfig config = config_of("gptoss-bf16-h160");
  auto specs = expected_tensors(config);
  specs.push_back({"model.layers.0.mlp.shared_expert.up_proj.weight", DType::kBf16, {3, 2}});
  EXPECT_THAT(fault(config, specs),
              HasSubstr("tensor model.layers.0.mlp.shared_expert.up_proj.weight BF16 [3, 2] has no "
                        "place in gpt_oss as config.json describes it"));
}

TEST(CheckTensors, FactorsMayBeOfEitherTypeAndOfAnyShape) {
  const ModelConfig config = config_of("mixtral-fp8-h80");
  auto specs = expected_tensors(config);
  for (TensorSpec& spec : specs) {
    if (!spec.is_factor) continue;
    spec.dtype = DType::kBf16;
    spec.shape = {1, 1};
  }
  EXPECT_EQ(fault(config, specs), "");
  const auto factor = std::find_if(specs.begin(), specs.end(),
                                   [](const TensorSpec& spec) { return spec.is_factor; });
  factor->shape = {2};
  EXPECT_THAT(fault(config, specs), HasSubstr(factor->name + " is BF16 [2], expected F32 []"));
}

TEST(CheckTensors, MissingTensorsAreCounted) {
  const ModelConfig config = config_of("gptoss-bf16-h160");
  auto specs = expected_tensors(config);
  specs.pop_back();
  EXPECT_THAT(fault(config, specs), HasSubstr("no tensor lm_head.weight"));
  specs.pop_back();
  EXPECT_THAT(fault(config, specs), HasSubstr("(the first of 2 missing tensors)"));
}

TEST(CheckTensors, AnotherShapeIsNamed) {
  const ModelConfig config = config_of("gptoss-bf16-h160");
  auto specs = expected_tensors(config);
  specs.back().shape[0] += 1;
  EXPECT_THAT(fault(config, specs),
              HasSubstr("tensor lm_head.weight is BF16 [769, 160], expected BF16 [768, 160]"));
}

TEST(CheckTensors, QuantisedWeightsUnderAPlainConfig) {
  const auto quantised = expected_tensors(config_of("gptoss-mxfp4-h160"));
  const ModelConfig plain = config_of("gptoss-mxfp4-h160", R"({"quantization_config": null})");
  EXPECT_THAT(fault(plain, quantised), HasSubstr("config.json has no quantization_config, but the "
                                                 "weights are MXFP4"));
}

TEST(CheckTensors, PlainWeightsUnderAQuantisedConfig) {
  const auto plain =
      expected_tensors(config_of("gptoss-mxfp4-h160", R"({"quantization_config": null})"));
  EXPECT_THAT(fault(config_of("gptoss-mxfp4-h160"), plain),
              HasSubstr("config.json says quant_method mxfp4, but the experts are not quantised"));
}

}  // namespace
}  // namespace rota
