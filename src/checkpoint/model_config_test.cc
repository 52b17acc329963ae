#include "checkpoint/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/json_file.h"
#include "checkpoint/quant_config.h"
#include "checkpoint/testing/write_safetensors.h"

namespace rota {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string golden(std::string_view model) {
  return fmt::format("{}/tests/goldens/models/{}", ROTA_SOURCE_DIR, model);
}

json gpt_oss() { return *read_json_file(golden("gptoss-mxfp4-h160") + "/config.json"); }
json qwen3() { return *read_json_file(golden("qwen3-bf16-h160") + "/config.json"); }
json nemotron() { return *read_json_file(golden("nemotron-bf16-h336") + "/config.json"); }
json mixtral() { return *read_json_file(golden("mixtral-bf16-h72") + "/config.json"); }

// The golden's config with some entries replaced.
Result<ModelConfig> parse_with(json config, std::string_view overrides) {
  auto changed = apply_overrides(std::move(config), overrides);
  if (!changed.ok()) return changed.status();
  return parse_model_config(*changed, "config.json");
}

std::string fault_with(const json& config, std::string_view overrides) {
  return status_of(parse_with(config, overrides)).message();
}

TEST(ModelConfig, GptOssGolden) {
  const auto c = read_model_config(golden("gptoss-mxfp4-h160"));
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->architecture, Architecture::kGptOss);
  EXPECT_EQ(c->hidden, 160);
  EXPECT_EQ(c->layers, 4);
  EXPECT_EQ(c->vocab, 1024);
  EXPECT_EQ(c->max_position, 131072);
  EXPECT_EQ(c->rms_eps, 1e-5);
  EXPECT_EQ(c->heads, 4);
  EXPECT_EQ(c->kv_heads, 2);
  EXPECT_EQ(c->head_dim, 32);
  EXPECT_TRUE(c->attention_bias && c->attention_sinks && c->expert_bias && c->router_bias);
  EXPECT_EQ(c->sliding_window, 128);
  EXPECT_THAT(c->attention, ElementsAre(AttentionKind::kSliding, AttentionKind::kFull,
                                        AttentionKind::kSliding, AttentionKind::kFull));
  EXPECT_EQ(c->experts, 8);
  EXPECT_EQ(c->top_k, 4);
  EXPECT_EQ(c->intermediate, 96);
  EXPECT_EQ(c->activation, Activation::kClampedSwiglu);
  EXPECT_EQ(c->swiglu_limit, 7.0);
  EXPECT_EQ(c->quant.method, QuantMethod::kMxfp4);
  EXPECT_EQ(c->quant.modules_to_not_convert.size(), 4u);
  EXPECT_THAT(c->eos_token_ids, ElementsAre(2));
  EXPECT_EQ(c->pad_token_id, 0);
  EXPECT_FALSE(c->bos_token_id.has_value());

  EXPECT_EQ(c->rope.type, RopeType::kYarn);
  EXPECT_EQ(c->rope.theta, 150000);
  EXPECT_EQ(c->rope.factor, 32);
  EXPECT_EQ(c->rope.original_max_position, 4096);
  EXPECT_EQ(c->rope.beta_fast, 32);
  EXPECT_EQ(c->rope.beta_slow, 1);
  EXPECT_FALSE(c->rope.truncate);
  EXPECT_DOUBLE_EQ(c->rope.attention_factor, 0.1 * std::log(32.0) + 1);
}

TEST(ModelConfig, GptOssBf16GoldenIsNotQuantised) {
  const auto c = read_model_config(golden("gptoss-bf16-h160"));
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->quant.method, QuantMethod::kNone);
}

TEST(ModelConfig, MixtralGolden) {
  const auto c = read_model_config(golden("mixtral-bf16-h72"));
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->architecture, Architecture::kMixtral);
  EXPECT_EQ(c->head_dim, 18);
  EXPECT_EQ(c->top_k, 2);
  EXPECT_EQ(c->activation, Activation::kSilu);
  EXPECT_FALSE(c->attention_bias || c->attention_sinks || c->expert_bias || c->router_bias);
  EXPECT_EQ(c->sliding_window, 0);
  EXPECT_THAT(c->attention, Each(AttentionKind::kFull));
  EXPECT_EQ(c->rope.type, RopeType::kDefault);
  EXPECT_EQ(c->rope.theta, 1e6);
  EXPECT_EQ(c->bos_token_id, 1);
}

TEST(ModelConfig, Qwen3Golden) {
  const auto c = read_model_config(golden("qwen3-bf16-h160"));
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->architecture, Architecture::kQwen3Moe);
  EXPECT_EQ(c->experts, 10);
  EXPECT_EQ(c->intermediate, 64);
  EXPECT_TRUE(c->qk_norm && c->norm_topk_prob);
  EXPECT_FALSE(c->attention_bias);
  EXPECT_EQ(c->rms_eps, 1e-6);
}

TEST(ModelConfig, NemotronGolden) {
  const auto c = read_model_config(golden("nemotron-bf16-h336"));
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->architecture, Architecture::kNemotronH);
  EXPECT_EQ(c->layers, 6);  // ME*EME
  EXPECT_THAT(c->layer_kinds, ElementsAre(LayerKind::kMamba, LayerKind::kMoe, LayerKind::kAttention,
                                          LayerKind::kMoe, LayerKind::kMamba, LayerKind::kMoe));
  EXPECT_THAT(c->attention,
              ElementsAre(AttentionKind::kNone, AttentionKind::kNone, AttentionKind::kFull,
                          AttentionKind::kNone, AttentionKind::kNone, AttentionKind::kNone));
  EXPECT_EQ(c->moe_layers(), 3);
  EXPECT_TRUE(c->has_mamba(0) && !c->has_moe(0) && !c->has_attention(0));
  EXPECT_EQ(c->rope.type, RopeType::kNone);
  EXPECT_EQ(c->rms_eps, 1e-5);
  EXPECT_EQ(c->mamba.inner(), 6 * 16);
  EXPECT_EQ(c->mamba.conv_width(), 96 + 2 * 2 * 16);
  EXPECT_EQ(c->mamba.projected(), 96 + 160 + 6);
  EXPECT_EQ(c->mamba.conv_kernel, 4);
  EXPECT_EQ(c->experts, 10);
  EXPECT_EQ(c->top_k, 4);
  EXPECT_EQ(c->intermediate, 80);
  EXPECT_EQ(c->shared_intermediate, 144);
  EXPECT_EQ(c->latent, 0);
  EXPECT_EQ(c->routed_scaling_factor, 2.5);
  EXPECT_EQ(c->activation, Activation::kRelu2);
  EXPECT_TRUE(c->norm_topk_prob && c->router_correction_bias);
  EXPECT_FALSE(c->router_bias || c->expert_bias || c->attention_bias);
}

TEST(ModelConfig, NemotronLayersMayBeAListOfNames) {
  json config = nemotron();
  config.erase("hybrid_override_pattern");
  config.erase("num_hidden_layers");
  config["layers_block_type"] = {"mamba", "moe", "attention"};
  const auto c = parse_model_config(config, "config.json");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_THAT(c->layer_kinds,
              ElementsAre(LayerKind::kMamba, LayerKind::kMoe, LayerKind::kAttention));
}

TEST(ModelConfig, NemotronLatentWidthAndGroups) {
  const auto c = parse_with(nemotron(), R"({"moe_latent_size": 48, "n_group": 5, "topk_group": 2,
      "n_shared_experts": 0})");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->latent, 48);
  EXPECT_EQ(c->expert_groups, 5);
  EXPECT_EQ(c->expert_groups_kept, 2);
  EXPECT_EQ(c->shared_intermediate, 0);
}

TEST(ModelConfig, NemotronWithoutMambaNeedsNoneOfItsSizes) {
  const auto c = parse_with(nemotron(), R"({"hybrid_override_pattern": "*E", "num_hidden_layers": 2,
      "mamba_num_heads": null})");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->mamba.heads, 0);
}

TEST(ModelConfig, Qwen3WindowIsOffUnlessTurnedOn) {
  const auto off = parse_with(qwen3(), R"({"sliding_window": 4096})");
  ASSERT_TRUE(off.ok()) << off.status().message();
  EXPECT_EQ(off->sliding_window, 0);
  EXPECT_THAT(off->attention, Each(AttentionKind::kFull));
}

TEST(ModelConfig, MixtralWithAWindowSlidesInEveryLayer) {
  const auto c = parse_with(mixtral(), R"({"sliding_window": 4096})");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->sliding_window, 4096);
  EXPECT_THAT(c->attention, Each(AttentionKind::kSliding));
}

TEST(ModelConfig, GptOssWithoutLayerTypesAlternates) {
  const auto c = parse_with(gpt_oss(), R"({"layer_types": null})");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->attention[0], AttentionKind::kSliding);
  EXPECT_EQ(c->attention[3], AttentionKind::kFull);
}

TEST(ModelConfig, AllLayersFullNeedNoWindow) {
  const auto c = parse_with(gpt_oss(), R"({"sliding_window": null, "layer_types":
      ["full_attention", "full_attention", "full_attention", "full_attention"]})");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->sliding_window, 0);
}

TEST(ModelConfig, RopeScalingNullIsPlainRope) {
  const auto c = parse_with(gpt_oss(), R"({"rope_scaling": null, "rope_theta": 100000})");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->rope.type, RopeType::kDefault);
  EXPECT_EQ(c->rope.theta, 100000);
}

TEST(ModelConfig, NewerSpellingsAreRead) {
  json config = gpt_oss();
  json rope = config["rope_scaling"];
  rope["rope_theta"] = 170000.0;
  config.erase("rope_scaling");
  config.erase("rope_theta");
  config["rope_parameters"] = rope;
  config["dtype"] = "bfloat16";
  config.erase("experts_per_token");
  const auto c = parse_model_config(config, "config.json");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->rope.type, RopeType::kYarn);
  EXPECT_EQ(c->rope.theta, 170000);
  EXPECT_EQ(c->rope.factor, 32);

  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  const auto plain = parse_model_config(config, "config.json");
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  EXPECT_EQ(plain->rope.type, RopeType::kDefault);
  EXPECT_EQ(plain->rope.theta, 5e5);
}

TEST(ModelConfig, OlderSpellingsAreRead) {
  json config = gpt_oss();
  config.erase("num_experts_per_tok");
  config["rope_scaling"].erase("original_max_position_embeddings");
  config["rope_scaling"].erase("factor");
  config["rope_scaling"]["type"] = config["rope_scaling"]["rope_type"];
  config["rope_scaling"].erase("rope_type");
  const auto c = parse_model_config(config, "config.json");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->top_k, 4);
  EXPECT_EQ(c->rope.type, RopeType::kYarn);
  EXPECT_EQ(c->rope.original_max_position, 4096);
  EXPECT_EQ(c->rope.factor, 32);
}

TEST(ModelConfig, AttentionFactorIsTakenOrComputed) {
  const auto given = parse_with(gpt_oss(), R"({"rope_scaling": {"attention_factor": 1.25}})");
  ASSERT_TRUE(given.ok());
  EXPECT_EQ(given->rope.attention_factor, 1.25);
  const auto scaled =
      parse_with(gpt_oss(), R"({"rope_scaling": {"mscale": 0.707, "mscale_all_dim": 1.0}})");
  ASSERT_TRUE(scaled.ok());
  EXPECT_DOUBLE_EQ(scaled->rope.attention_factor,
                   (0.0707 * std::log(32.0) + 1) / (0.1 * std::log(32.0) + 1));
}

TEST(ModelConfig, EosMayBeAListANumberOrNothing) {
  EXPECT_THAT(parse_with(gpt_oss(), R"({"eos_token_id": [2, 7]})")->eos_token_ids,
              ElementsAre(2, 7));
  EXPECT_THAT(parse_with(gpt_oss(), R"({"eos_token_id": null})")->eos_token_ids, IsEmpty());
}

TEST(ModelConfig, PadMinusOneIsNone) {
  EXPECT_FALSE(parse_with(gpt_oss(), R"({"pad_token_id": -1})")->pad_token_id.has_value());
}

TEST(HfOverrides, MergeDeeplyAndReplaceTheRest) {
  const auto merged = apply_overrides(json::parse(R"({"a": {"b": 1, "c": [1, 2]}, "d": 3})"),
                                      R"({"a": {"c": [4]}, "d": null, "e": {"f": 5}})");
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(*merged, json::parse(R"({"a": {"b": 1, "c": [4]}, "d": null, "e": {"f": 5}})"));
}

TEST(HfOverrides, MustBeAnObject) {
  EXPECT_THAT(status_of(apply_overrides(json::object(), "[1]")).message(),
              HasSubstr("--hf-overrides: is [1], expected a JSON object"));
  EXPECT_THAT(status_of(apply_overrides(json::object(), "{")).message(),
              HasSubstr("--hf-overrides: line 1, column 2: not valid JSON"));
}

struct Lie {
  const char* name;
  const char* overrides;
  const char* message;
};

void PrintTo(const Lie& lie, std::ostream* out) { *out << lie.name; }

class ConfigThatLies : public ::testing::TestWithParam<Lie> {};

TEST_P(ConfigThatLies, IsRefusedByName) {
  EXPECT_THAT(fault_with(gpt_oss(), GetParam().overrides),
              AllOf(HasSubstr("config.json: "), HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    Hostile, ConfigThatLies,
    ::testing::Values(
        Lie{"NoExperts", R"({"num_local_experts": 0})",
            "num_local_experts is 0, expected an integer from 1 to 4096"},
        Lie{"TopKAboveExperts", R"({"num_experts_per_tok": 9, "experts_per_token": 9})",
            "num_experts_per_tok is 9, expected an integer from 1 to 8"},
        Lie{"TopKZero", R"({"num_experts_per_tok": 0})", "num_experts_per_tok is 0"},
        Lie{"TopKTwice", R"({"experts_per_token": 3})",
            "experts_per_token is 3, expected the same as num_experts_per_tok (4)"},
        Lie{"HeadDimZero", R"({"head_dim": 0})", "head_dim is 0"},
        Lie{"HeadDimOdd", R"({"head_dim": 33})", "head_dim is 33, expected an even number"},
        Lie{"HeadsNotDivisible", R"({"num_key_value_heads": 3})",
            "num_key_value_heads is 3, expected a divisor of num_attention_heads (4)"},
        Lie{"KvHeadsAboveHeads", R"({"num_key_value_heads": 8})", "num_key_value_heads is 8"},
        Lie{"HeadDimNotDerivable", R"({"head_dim": null, "num_attention_heads": 6})",
            "head_dim is missing, expected a number"},
        Lie{"VocabularyTwoToTheThirtyOne", R"({"vocab_size": 2147483648})",
            "vocab_size is 2147483648, expected an integer from 1 to 16777216"},
        Lie{"VocabularyTwoToTheSixtyFour", R"({"vocab_size": 18446744073709551615})",
            "vocab_size is 18446744073709551615"},
        Lie{"VocabularyNegative", R"({"vocab_size": -1})", "vocab_size is -1"},
        Lie{"VocabularyMissing", R"({"vocab_size": null})", "vocab_size is missing"},
        Lie{"HiddenFractional", R"({"hidden_size": 160.0})", "hidden_size is 160.0"},
        Lie{"HiddenText", R"({"hidden_size": "160"})", "hidden_size is \"160\""},
        Lie{"HiddenHuge", R"({"hidden_size": 1048577})", "hidden_size is 1048577"},
        Lie{"LayersZero", R"({"num_hidden_layers": 0})", "num_hidden_layers is 0"},
        Lie{"LayerTypesShort", R"({"layer_types": ["full_attention"]})",
            "layer_types has 1 entries, expected num_hidden_layers = 4"},
        Lie{"LayerTypesUnknown",
            R"({"layer_types": ["full_attention", "linear_attention", "a", "b"]})",
            "layer_types has 'linear_attention'"},
        Lie{"LayerTypesNumbers", R"({"layer_types": [1, 2, 3, 4]})",
            "layer_types is [1,2,3,4], expected a list of strings"},
        Lie{"WindowZero", R"({"sliding_window": 0})", "sliding_window is 0"},
        Lie{"WindowMissing", R"({"sliding_window": null})",
            "sliding_window is missing, expected a number: layers slide"},
        Lie{"RopeThetaZero", R"({"rope_theta": 0})", "rope_theta is 0"},
        Lie{"RopeThetaOne", R"({"rope_theta": 1})", "rope_theta is 1, expected a number above 1"},
        Lie{"RopeThetaNanText", R"({"rope_theta": "NaN"})", "rope_theta is \"NaN\""},
        Lie{"RopeThetaHuge", R"({"rope_theta": 1e300})", "rope_theta is 1e+300"},
        Lie{"RopeFactorNegative", R"({"rope_scaling": {"factor": -32}})",
            "rope_scaling: factor is -32"},
        Lie{"RopeBetas", R"({"rope_scaling": {"beta_fast": 0.5}})",
            "rope_scaling: beta_fast is 0.5, expected at least beta_slow (1)"},
        Lie{"RopeTypeUnknown", R"({"rope_scaling": {"rope_type": "llama3"}})",
            "rope_scaling: rope_type is 'llama3', expected default or yarn"},
        Lie{"RopeScalingList", R"({"rope_scaling": [32]})", "rope_scaling is [32], expected"},
        Lie{"RopeTwice", R"({"rope_parameters": {"rope_type": "default"}})",
            "has rope_parameters and rope_scaling"},
        Lie{"RopePartial", R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor is 0.5"},
        Lie{"EpsilonZero", R"({"rms_norm_eps": 0})", "rms_norm_eps is 0"},
        Lie{"EpsilonNegative", R"({"rms_norm_eps": -1e-5})", "rms_norm_eps is -1e-05"},
        Lie{"LimitZero", R"({"swiglu_limit": 0})", "swiglu_limit is 0"},
        Lie{"EosNegative", R"({"eos_token_id": [2, -1]})", "eos_token_id is [2,-1]"},
        Lie{"BosNegative", R"({"bos_token_id": -1})", "bos_token_id is -1"},
        Lie{"ActivationUnknown", R"({"hidden_act": "gelu"})", "hidden_act is 'gelu'"},
        Lie{"TypeUnknown", R"({"model_type": "llama"})",
            "model_type is 'llama', expected one of: gpt_oss, mixtral, qwen3_moe, nemotron_h"},
        Lie{"TypeMissing", R"({"model_type": null})", "model_type is missing"},
        Lie{"Float16", R"({"torch_dtype": "float16"})",
            "torch_dtype is 'float16', expected bfloat16"},
        Lie{"TieText", R"({"tie_word_embeddings": "no"})",
            "tie_word_embeddings is \"no\", expected true or false"},
        Lie{"QuantisationUnknown", R"({"quantization_config": {"quant_method": "gptq"}})",
            "quantization_config: quant_method is 'gptq', which is not served; expected mxfp4, "
            "fp8"},
        Lie{"QuantisationText", R"({"quantization_config": "mxfp4"})",
            "quantization_config is \"mxfp4\", expected a JSON object"},
        Lie{"QuantisedWidth", R"({"intermediate_size": 90})",
            "intermediate_size is 90, expected a multiple of 32 for mxfp4"},
        Lie{"QuantisedInPart",
            R"({"quantization_config": {"modules_to_not_convert": ["model.layers.*.mlp"]}})",
            "experts of two formats"},
        Lie{"ExpertsOfAllLayers", R"({"num_local_experts": 4096, "num_hidden_layers": 1024,
                                      "layer_types": null})",
            "num_local_experts is 4096, expected at most 256 in 1024 layers"}),
    [](const auto& info) { return std::string(info.param.name); });

class NemotronConfigThatLies : public ::testing::TestWithParam<Lie> {};

TEST_P(NemotronConfigThatLies, IsRefusedByName) {
  EXPECT_THAT(fault_with(nemotron(), GetParam().overrides),
              AllOf(HasSubstr("config.json: "), HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    Hostile, NemotronConfigThatLies,
    ::testing::Values(
        Lie{"PatternMissing", R"({"hybrid_override_pattern": null})",
            "hybrid_override_pattern is missing, expected a string"},
        Lie{"PatternEmpty", R"({"hybrid_override_pattern": ""})",
            "hybrid_override_pattern has 0 layers, expected 1 to 1024"},
        Lie{"PatternDense", R"({"hybrid_override_pattern": "ME*-ME"})",
            "hybrid_override_pattern has '-' at layer 3"},
        Lie{"PatternShort", R"({"hybrid_override_pattern": "ME*E"})",
            "num_hidden_layers is 6, expected 4, as hybrid_override_pattern says"},
        Lie{"PatternWithoutExperts", R"({"hybrid_override_pattern": "M*M*M*"})",
            "hybrid_override_pattern has no mixture of experts"},
        Lie{"ListUnknown",
            R"({"hybrid_override_pattern": null, "layers_block_type": ["mamba", "mlp"]})",
            "layers_block_type has 'mlp' at layer 1"},
        Lie{"ListAndPattern", R"({"layers_block_type": ["mamba", "moe"]})",
            "hybrid_override_pattern and layers_block_type disagree"},
        Lie{"NoMambaHeads", R"({"mamba_num_heads": 0})", "mamba_num_heads is 0"},
        Lie{"MambaHeadDimHuge", R"({"mamba_head_dim": 4097})", "mamba_head_dim is 4097"},
        Lie{"MambaGroups", R"({"n_groups": 4})",
            "n_groups is 4, expected a divisor of mamba_num_heads (6)"},
        Lie{"MambaGroupsZero", R"({"n_groups": 0})", "n_groups is 0"},
        Lie{"StateMissing", R"({"ssm_state_size": null})", "ssm_state_size is missing"},
        Lie{"ConvOne", R"({"conv_kernel": 1})",
            "conv_kernel is 1, expected an integer from 2 to 16"},
        Lie{"MambaTooWide", R"({"mamba_num_heads": 4096, "mamba_head_dim": 4096, "n_groups": 1})",
            "make an input projection of"},
        Lie{"ConvWithoutBias", R"({"use_conv_bias": false})",
            "use_conv_bias is false, expected true"},
        Lie{"ProjectionBias", R"({"mamba_proj_bias": true})", "mamba_proj_bias is true"},
        Lie{"MlpBias", R"({"mlp_bias": true})", "mlp_bias is true"},
        Lie{"Activation", R"({"mlp_hidden_act": "silu"})",
            "mlp_hidden_act is 'silu', expected relu2"},
        Lie{"MambaActivation", R"({"mamba_hidden_act": "gelu"})", "mamba_hidden_act is 'gelu'"},
        Lie{"PatternOfOtherLetters", R"({"hybrid_override_pattern": "ME\u00e9"})",
            "hybrid_override_pattern has '\\u00e9' at layer 2, expected M"},
        Lie{"StepLimitAbove", R"({"time_step_limit": [0.0, 0.1]})",
            "time_step_limit is [0.0,0.1], which is not served"},
        Lie{"StepLimitBelow", R"({"time_step_limit": [0.001, Infinity]})",
            R"(time_step_limit is [0.001,"Infinity"], which is not served)"},
        Lie{"StepLimitNumber", R"({"time_step_limit": 0})", "time_step_limit is 0"},
        Lie{"StepLimitMinus", R"({"time_step_limit": [0, -Infinity]})", "time_step_limit is [0,"},
        Lie{"InfiniteScaling", R"({"routed_scaling_factor": Infinity})",
            R"(routed_scaling_factor is "Infinity", expected a number)"},
        Lie{"RoutedScaling", R"({"routed_scaling_factor": 0})", "routed_scaling_factor is 0"},
        Lie{"RouterGroups", R"({"n_group": 3})",
            "n_group is 3, expected a divisor of n_routed_experts (10)"},
        Lie{"RouterGroupsKept", R"({"n_group": 5, "topk_group": 6})", "topk_group is 6"},
        Lie{"RouterGroupsTooSmall", R"({"n_group": 5, "topk_group": 1})",
            "num_experts_per_tok is 4, expected at most 2"},
        Lie{"SharedExperts", R"({"n_shared_experts": 2})", "n_shared_experts is 2"},
        Lie{"SharedWidth", R"({"moe_shared_expert_intermediate_size": 0})",
            "moe_shared_expert_intermediate_size is 0"},
        Lie{"LatentZero", R"({"moe_latent_size": 0})", "moe_latent_size is 0"},
        Lie{"Epsilon", R"({"layer_norm_epsilon": 0})", "layer_norm_epsilon is 0"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ModelConfig, StepLimitsThatClampNothingAreServed) {
  for (const char* limit : {"[0.0, Infinity]", "[0, 1e300]", "[-1, Infinity]", "null"}) {
    EXPECT_EQ(fault_with(nemotron(), fmt::format(R"({{"time_step_limit": {}}})", limit)), "");
  }
}

TEST(ConfigHostile, NanRopeIsNoJson) {
  EXPECT_THAT(
      status_of(parse_json("config.json", "{\n  \"rope_theta\": NaN\n}")).message(),
      HasSubstr("config.json: line 2, column 17: not valid JSON near 'NaN': NaN is no number; "
                "write one, or null, in its place"));
}

TEST(ParseJson, PythonsInfinitiesAreReadAsTheirNames) {
  EXPECT_EQ(*parse_json("c", R"({"a": [0.0, Infinity], "b": -Infinity, "c": "Infinity"})"),
            json::parse(R"({"a": [0.0, "Infinity"], "b": "-Infinity", "c": "Infinity"})"));
  EXPECT_EQ(*parse_json("c", "Infinity"), json("Infinity"));
  for (const char* text :
       {"[Infinit", "[Infinityy]", "[+Infinity]", "[--Infinity]", "[1Infinity]", "[Infinity"}) {
    EXPECT_THAT(status_of(parse_json("c", text)).message(), HasSubstr("not valid JSON")) << text;
  }
  EXPECT_THAT(status_of(parse_json("c", "[Infinity, x]")).message(), HasSubstr("column 12"));
  // As many as a hostile file likes cost no more than a few passes.
  std::string many = "[Infinity";
  for (int i = 0; i < 100000; ++i) many += ",Infinity";
  EXPECT_THAT(status_of(parse_json("c", many + "]")).message(), HasSubstr("not valid JSON"));
}

TEST(ConfigHostile, NumberOverflow) {
  EXPECT_THAT(status_of(parse_json("config.json", R"({"rope_theta": 1e400})")).message(),
              HasSubstr("1e400"));
}

TEST(ConfigHostile, NestedDeep) {
  EXPECT_THAT(status_of(parse_json("config.json", std::string(3000, '['))).message(),
              HasSubstr("config.json: JSON nested 3000 deep, expected at most 64"));
  EXPECT_EQ(json_depth(R"({"a\"[[[": [1, {"b": 2}]})"), 3);
}

TEST(ModelConfig, SpecialTokensBeyondACutVocabularyAreLeftOut) {
  const json config =
      apply_overrides(gpt_oss(), R"({"eos_token_id": [2, 200002], "pad_token_id": 199999})")
          .value();
  const ModelConfig parsed = parse_model_config(config, "config.json").value();
  EXPECT_EQ(parsed.eos_token_ids, std::vector<int32_t>{2});
  EXPECT_FALSE(parsed.pad_token_id.has_value());
}

TEST(ConfigHostile, NoObject) {
  EXPECT_THAT(status_of(parse_model_config(json::array(), "config.json")).message(),
              HasSubstr("config.json is [], expected a JSON object"));
}

TEST(ConfigHostile, GptOssWithoutAWordAboutRopeScaling) {
  json config = gpt_oss();
  config.erase("rope_scaling");
  EXPECT_THAT(status_of(parse_model_config(config, "config.json")).message(),
              HasSubstr("rope_scaling is missing, expected an object, or null for plain rope"));
}

TEST(ConfigHostile, Mxfp4Mixtral) {
  EXPECT_THAT(fault_with(mixtral(), R"({"quantization_config": {"quant_method": "mxfp4"}})"),
              HasSubstr("mxfp4 is served for gpt_oss, not for mixtral"));
}

TEST(ConfigHostile, Qwen3WithDenseLayers) {
  EXPECT_THAT(fault_with(qwen3(), R"({"mlp_only_layers": [1]})"), HasSubstr("mlp_only_layers"));
  EXPECT_THAT(fault_with(qwen3(), R"({"decoder_sparse_step": 2})"),
              HasSubstr("decoder_sparse_step is 2"));
}

TEST(ConfigHostile, MixtralWithAttentionBias) {
  EXPECT_THAT(fault_with(mixtral(), R"({"attention_bias": true})"),
              HasSubstr("attention_bias is true"));
}

class ConfigFiles : public ::testing::Test {
 protected:
  testing::TempFolder folder_;
};

TEST_F(ConfigFiles, MissingAndOversized) {
  EXPECT_EQ(status_of(read_model_config(folder_.path())).code(), StatusCode::kNotFound);
  const std::string path = folder_ / "big.json";
  testing::write_file(path, "{}");
  std::filesystem::resize_file(path, static_cast<uintmax_t>(kMaxJsonFileBytes) + 1);
  EXPECT_THAT(status_of(read_json_file(path)).message(), HasSubstr("bytes long, expected at most"));
}

TEST_F(ConfigFiles, OverridesReachTheFile) {
  testing::write_file(folder_ / "config.json", gpt_oss().dump());
  const auto c = read_model_config(folder_.path(), {.hf_overrides = R"({"swiglu_limit": 1000})"});
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->swiglu_limit, 1000);
}

TEST_F(ConfigFiles, ModelOptsOwnFileDecides) {
  testing::write_file(
      folder_ / "config.json",
      apply_overrides(mixtral(), R"({"hidden_size": 96, "intermediate_size": 96})")->dump());
  const auto quantised = [&](const std::string& text) {
    testing::write_file(folder_ / "hf_quant_config.json", text);
    return read_model_config(folder_.path());
  };
  const auto nvfp4 = quantised(R"({"quantization": {"quant_algo": "NVFP4", "group_size": 16,
                                   "exclude_modules": ["lm_head", "model.layers.*.self_attn.q_proj"]}})");
  ASSERT_TRUE(nvfp4.ok()) << nvfp4.status().message();
  EXPECT_EQ(nvfp4->quant.method, QuantMethod::kModelOpt);
  EXPECT_EQ(nvfp4->expert_format.code, LinearCode::kNvfp4);
  EXPECT_EQ(nvfp4->quant.format_of("lm_head").code, LinearCode::kPlain);
  EXPECT_EQ(nvfp4->quant.format_of("model.layers.1.self_attn.q_proj").code, LinearCode::kPlain);
  EXPECT_EQ(nvfp4->quant.format_of("model.layers.1.self_attn.k_proj").code, LinearCode::kNvfp4);
  EXPECT_THAT(
      status_of(quantised(R"({"quantization": {"quant_algo": "W4A8_AWQ"}})")).message(),
      HasSubstr("hf_quant_config.json: quantization: quant_algo is 'W4A8_AWQ', which is not "
                "served; expected FP8, NVFP4 or MIXED_PRECISION"));
  EXPECT_THAT(status_of(quantised(R"({"quantization": {"quant_algo": "NVFP4", "group_size": 32}})"))
                  .message(),
              HasSubstr("group_size is 32, expected 16"));
  EXPECT_TRUE(quantised(R"({"quantization": {"quant_algo": null}})").ok());
  EXPECT_FALSE(quantised("[").ok());
}

TEST_F(ConfigFiles, AnOverrideOfTheQuantisationWinsOverBothFiles) {
  testing::write_file(folder_ / "config.json",
                      apply_overrides(mixtral(), R"({"hidden_size": 96, "intermediate_size": 96,
          "quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}})")
                          ->dump());
  testing::write_file(folder_ / "hf_quant_config.json",
                      R"({"quantization": {"quant_algo": "NVFP4", "exclude_modules": []}})");
  const auto format_with = [&](const std::string& overrides) {
    const auto config = read_model_config(folder_.path(), {.hf_overrides = overrides});
    EXPECT_TRUE(config.ok()) << config.status().message();
    return config->expert_format.code;
  };
  EXPECT_EQ(format_with(R"({"hidden_size": 64})"), LinearCode::kNvfp4);
  EXPECT_EQ(format_with(R"({"quantization_config": null})"), LinearCode::kPlain);
  EXPECT_EQ(format_with(R"({"quantization_config": {"quant_method": "fp8"}})"), LinearCode::kFp8);
  // Merged over config.json's own, as everything else is.
  EXPECT_EQ(format_with(R"({"quantization_config": {"ignore": ["*experts*"]}})"),
            LinearCode::kPlain);
  EXPECT_EQ(format_with(R"({"quantization_config": {"ignore": ["lm_head"]}})"), LinearCode::kFp8);
}

TEST_F(ConfigFiles, MixedPrecisionNamesEachLayer) {
  testing::write_file(folder_ / "config.json", mixtral().dump());
  const auto mixed = [&](const std::string& layers) {
    testing::write_file(
        folder_ / "hf_quant_config.json",
        R"({"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": )" + layers +
            "}}");
    return read_model_config(folder_.path());
  };
  const auto config = mixed(R"({"model.layers.0.self_attn.o_proj": {"quant_algo": "FP8"}})");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->quant.format_of("model.layers.0.self_attn.o_proj").code, LinearCode::kFp8);
  EXPECT_EQ(config->quant.format_of("model.layers.0.self_attn.q_proj").code, LinearCode::kPlain);
  EXPECT_EQ(config->expert_format.code, LinearCode::kPlain);
  EXPECT_THAT(
      status_of(mixed(R"({"model.layers.0.block_sparse_moe.experts.1.w2": {"quant_algo": "FP8"}})"))
          .message(),
      HasSubstr("routed experts of two formats in one model are not served"));
  EXPECT_THAT(status_of(mixed(R"({"x": {"quant_algo": "INT4"}})")).message(),
              HasSubstr("quantized_layers.x: quant_algo is 'INT4'"));
}

// What loading would refuse is refused before anything is planned, whichever layer has the width.
TEST(QuantisationConfig, Nvfp4WidthsAreWholeBlocksInEveryLinearLayer) {
  const auto fault = [](std::string_view widths, std::string_view ignored) {
    const json quantised =
        apply_overrides(nemotron(), fmt::format(R"({{"hidden_size": 96, "moe_intermediate_size": 96,
            "moe_shared_expert_intermediate_size": 96, "moe_latent_size": 32, "mamba_head_dim": 16,
            "quantization_config": {{"quant_method": "modelopt", "quant_algo": "NVFP4",
                                     "ignore": [{}]}}}})",
                                                ignored))
            .value();
    return fault_with(quantised, std::string(widths));
  };
  EXPECT_EQ(fault("{}", ""), "");
  struct Case {
    const char* widths;
    const char* module;
    int64_t inputs;
    const char* ignored = "";
  };
  for (const Case& c : {
           Case{R"({"moe_shared_expert_intermediate_size": 100})", "shared_experts.down_proj", 100},
           Case{R"({"mamba_head_dim": 3})", "out_proj", 18},
           Case{R"({"mamba_head_dim": 100})", "out_proj", 600},
           Case{R"({"moe_latent_size": 40})", "fc2_latent_proj", 40, R"("*experts*")"},
           Case{R"({"head_dim": 6})", "o_proj", 24},
       }) {
    EXPECT_THAT(fault(c.widths, c.ignored),
                AllOf(HasSubstr("config.json: backbone.layers."),
                      HasSubstr(fmt::format("{}: NVFP4 over {} inputs, expected a multiple "
                                            "of 16",
                                            c.module, c.inputs))));
  }
  // A layer that is not converted may be as wide as it likes.
  EXPECT_EQ(fault(R"({"moe_shared_expert_intermediate_size": 100})", R"("*shared_experts*")"), "");
}

TEST(QuantisationConfig, Fp8InBlocksOrWhole) {
  const auto fp8 = [](const char* rest) {
    return parse_model_config(
        *apply_overrides(
            qwen3(),
            fmt::format(R"({{"quantization_config": {{"quant_method": "fp8"{}}}}})", rest)),
        "config.json");
  };
  const auto blocks = fp8(R"(, "weight_block_size": [64, 128])");
  ASSERT_TRUE(blocks.ok()) << blocks.status().message();
  EXPECT_EQ(
      blocks->expert_format,
      (LinearFormat{
          .code = LinearCode::kFp8, .block_out = 64, .block_in = 128, .named_inverse = true}));
  EXPECT_EQ(blocks->quant.format_of("lm_head").code, LinearCode::kPlain);
  EXPECT_EQ(fp8("")->expert_format, LinearFormat{.code = LinearCode::kFp8});
  EXPECT_THAT(status_of(fp8(R"(, "weight_block_size": [128, 100])")).message(),
              HasSubstr("weight_block_size is [128,100], expected a list of two sizes, such as "
                        "[128, 128], the second a multiple of 128"));
  for (const char* none : {R"("128x128")", "128", "[128]", "{}"}) {
    EXPECT_THAT(status_of(fp8(fmt::format(R"(, "weight_block_size": {})", none).c_str())).message(),
                HasSubstr("expected a list of two sizes, such as [128, 128]"));
  }
  EXPECT_THAT(status_of(fp8(R"(, "fmt": "e5m2")")).message(), HasSubstr("fmt is 'e5m2'"));
}

TEST(QuantisationConfig, CompressedTensorsByStrategy) {
  const auto with = [](std::string_view weights, std::string_view ignore) {
    return parse_model_config(*apply_overrides(mixtral(), fmt::format(R"({{"quantization_config": {{
            "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": [{}],
            "config_groups": {{"group_0": {{"targets": ["Linear"], "weights": {}}}}}}}}})",
                                                                      ignore, weights)),
                              "config.json");
  };
  const auto tensor = with(R"({"num_bits": 8, "type": "float", "strategy": "tensor"})",
                           R"("re:.*self_attn\\.o_proj$")");
  ASSERT_TRUE(tensor.ok()) << tensor.status().message();
  EXPECT_EQ(tensor->expert_format, LinearFormat{.code = LinearCode::kFp8});
  EXPECT_EQ(tensor->quant.format_of("model.layers.0.self_attn.o_proj").code, LinearCode::kPlain);
  EXPECT_EQ(tensor->quant.format_of("model.layers.0.self_attn.q_proj").code, LinearCode::kFp8);
  const auto channel = with(R"({"num_bits": 8, "type": "float", "strategy": "channel"})", "");
  EXPECT_EQ(channel->expert_format.block_out, 1);
  EXPECT_THAT(
      status_of(with(R"({"num_bits": 8, "type": "int", "strategy": "tensor"})", "")).message(),
      HasSubstr("is 'int of 8 bits', which is not served"));
  EXPECT_THAT(status_of(with(R"({"num_bits": 8, "type": "float"})", R"("re:(a|b)+")")).message(),
              HasSubstr("ignore is 're:(a|b)+'"));
}

TEST(ModuleMatches, GlobOfWholeModules) {
  EXPECT_TRUE(module_matches("lm_head", "lm_head"));
  EXPECT_TRUE(module_matches("model.layers.*.mlp", "model.layers.3.mlp.experts"));
  EXPECT_TRUE(module_matches("*experts", "model.layers.3.mlp.experts"));
  EXPECT_TRUE(module_matches("*", "anything"));
  EXPECT_FALSE(module_matches("model.layers.*.mlp.router", "model.layers.3.mlp.experts"));
  EXPECT_FALSE(module_matches("model.layers.1", "model.layers.12.mlp.experts"));
  EXPECT_FALSE(module_matches("model.layers.*.self_attn", "model.layers.3.mlp.experts"));
  EXPECT_FALSE(module_matches("", "model"));
}

}  // namespace
}  // namespace rota
