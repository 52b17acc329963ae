#include "engine/roofline.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/load_engine.h"
#include "engine/testing/planned_model.h"
#include "engine/testing/small_engine.h"

namespace rota {
namespace {

using testing::PlannedModel;

constexpr const char* kGptOss20b =
    R"({"num_hidden_layers": 24, "num_local_experts": 32, "layer_types": null})";

PartCost part(const TokenCost& cost, std::string_view name) {
  const auto at = std::find_if(cost.parts.begin(), cost.parts.end(),
                               [name](const PartCost& one) { return one.name == name; });
  return at == cost.parts.end() ? PartCost{.name = name} : *at;
}

// gpt-oss, by hand. An expert: MXFP4 of [5760, 2880] and [2880, 2880], 17 bytes for 32, BF16
// biases.
constexpr double kExpertBytes = (5760 + 2880) * (90 * 17 + 2);
constexpr double kExpertWeights = 3 * 2880.0 * 2880;
constexpr double kAttentionWeights = (4096 + 512 + 512 + 4096) * 2880.0;
constexpr double kAttentionBytes = 2 * (kAttentionWeights + 4096 + 512 + 512 + 2880 + 64);
constexpr double kHeadWeights = 201088 * 2880.0;

TEST(Roofline, ADecodedTokenOfGptOss20bByHand) {
  PlannedModel model(kGptOss20b);
  const TokenCost cost = decode_cost(model.work(), {.tokens = 1, .tokens_of_sequence = 1});
  EXPECT_EQ(part(cost, "experts").bytes, 24 * 4 * kExpertBytes);
  EXPECT_EQ(part(cost, "experts").flop, 24 * 4 * 2 * kExpertWeights);
  EXPECT_EQ(part(cost, "attention").bytes, 24 * kAttentionBytes);
  EXPECT_EQ(part(cost, "attention").flop, 24 * 2 * kAttentionWeights);
  EXPECT_EQ(part(cost, "router").bytes, 24 * 2 * 32 * 2881.0);
  EXPECT_EQ(part(cost, "lm_head").bytes, 2 * kHeadWeights);
  EXPECT_EQ(part(cost, "lm_head").flop, 2 * kHeadWeights);
  EXPECT_EQ(part(cost, "embedding").bytes, 2 * 2880);
  EXPECT_NEAR(cost.bytes, 3.7e9, 0.02e9);
}

TEST(Roofline, ADecodedTokenOfGptOss120bByHand) {
  PlannedModel model;
  const TokenCost cost = decode_cost(model.work(), {.tokens = 1, .tokens_of_sequence = 1});
  EXPECT_EQ(part(cost, "experts").bytes, 36 * 4 * kExpertBytes);
  EXPECT_EQ(part(cost, "router").flop, 36 * 2 * 128 * 2880.0);
  EXPECT_NEAR(cost.bytes, 5.0e9, 0.05e9);
}

// What the plan says is what a loaded model counts of itself.
TEST(Roofline, WeightsOfATokenAreThoseOfTheLoadedModel) {
  for (const std::string& name : testing::small_models()) {
    const EngineOptions options = testing::small_options(name, {.dtype = "bfloat16"});
    const LoadedEngine engine = load_engine(options).value();
    const TensorCensus census = take_census(expected_tensors(engine.config));
    const EnginePlan plan = plan_engine(options, engine.config, engine.cpu).value();
    const RankInputs inputs{.config = &engine.config,
                            .engine = &plan,
                            .census = &census,
                            .moe = options.moe,
                            .parallel = {}};
    const TokenCost cost = decode_cost(rank_work(inputs, plan_ranks(inputs).value().front()),
                                       {.tokens = 1, .tokens_of_sequence = 100});
    const double cached = part(cost, "kv_cache").bytes + part(cost, "state").bytes;
    EXPECT_NEAR(cost.bytes - cached, static_cast<double>(engine.model->bytes_per_token()), 0.5)
        << name;
  }
}

TEST(Roofline, AWindowReadsNoMoreOfTheCacheThanItSees) {
  PlannedModel model(kGptOss20b);
  const RankWork work = model.work();
  const double position = 2 * 8 * 64 * 2;  // keys and values of a layer, BF16
  const auto cache = [&](int64_t tokens) {
    return part(decode_cost(work, {.tokens = 1, .tokens_of_sequence = tokens}), "kv_cache");
  };
  EXPECT_EQ(cache(100).bytes, 24 * 100 * position);
  EXPECT_EQ(cache(4096).bytes, 12 * (4096 + 128) * position);
  EXPECT_EQ(cache(4096).flop, 12 * (4096 + 128) * 4 * 64 * 64.0);
}

TEST(Roofline, ABatchSharesWeightsAndMeetsMoreExperts) {
  PlannedModel model(kGptOss20b);
  const RankWork work = model.work();
  const TokenCost alone = decode_cost(work, {.tokens = 1, .tokens_of_sequence = 1});
  const TokenCost two = decode_cost(work, {.tokens = 2, .tokens_of_sequence = 1});
  EXPECT_EQ(part(two, "lm_head").bytes, part(alone, "lm_head").bytes / 2);
  // 32 (1 - (7/8)^2) = 7.5 experts for two tokens.
  EXPECT_DOUBLE_EQ(part(two, "experts").bytes, 24 * 7.5 / 2 * kExpertBytes);
  EXPECT_EQ(two.flop, alone.flop);
  const TokenCost many = decode_cost(work, {.tokens = 4096, .tokens_of_sequence = 1});
  EXPECT_NEAR(part(many, "experts").bytes * 4096, 24 * 32 * kExpertBytes, 1);
}

TEST(Roofline, APromptReadsWeightsOnceAStepAndTheHeadForItsLastTokenAlone) {
  PlannedModel model(kGptOss20b);
  const RankWork work = model.work();
  const TokenCost cost = prompt_cost(work, {.tokens = 512, .tokens_of_sequence = 1024});
  EXPECT_EQ(part(cost, "lm_head").bytes, 0);
  EXPECT_EQ(part(cost, "attention").bytes, 24 * kAttentionBytes / 512);
  const double position = 2 * 8 * 64 * 2;
  // Full layers see 1 .. 1024 and read 512, then 1024; windows see at most 128.
  const double full_seen = 1025.0 / 2;
  const double window_seen = (128 * 129 / 2.0 + (1024 - 128) * 128.0) / 1024;
  EXPECT_DOUBLE_EQ(part(cost, "kv_cache").flop, 12 * 4 * 64 * 64.0 * (full_seen + window_seen));
  EXPECT_DOUBLE_EQ(part(cost, "kv_cache").bytes,
                   12 * position * ((512 + 1024) + (512 + 639)) / 1024.0);
  // A prompt shorter than a step is one step.
  const TokenCost brief = prompt_cost(work, {.tokens = 512, .tokens_of_sequence = 8});
  EXPECT_EQ(part(brief, "attention").bytes, 24 * kAttentionBytes / 8);
}

TEST(Roofline, PaddingIsReadAndComputedOn) {
  PlannedModel model(kGptOss20b);
  model.options.moe.hidden_alignment = 256;
  const TokenCost cost = decode_cost(model.work(), {.tokens = 1, .tokens_of_sequence = 1});
  EXPECT_EQ(part(cost, "experts").flop, 24 * 4 * 2 * 3 * 3072.0 * 2880);
}

TEST(Roofline, RanksShareTheWork) {
  PlannedModel model(kGptOss20b);
  model.parallel.tensor_parallel_size = 2;
  const TokenCost cut = decode_cost(model.work(), {.tokens = 1, .tokens_of_sequence = 1});
  EXPECT_EQ(part(cut, "experts").flop, 24 * 4 * kExpertWeights);
  EXPECT_EQ(part(cut, "lm_head").bytes, kHeadWeights);
  EXPECT_EQ(part(cut, "router").bytes, 24 * 2 * 32 * 2881.0);
  // Four ranks with a token each: 8 experts here, of which 4 tokens meet 8 (1 - (7/8)^4).
  model.parallel = {.data_parallel_size = 4, .enable_expert_parallel = true};
  const TokenCost dealt = decode_cost(model.work(), {.tokens = 1, .tokens_of_sequence = 1});
  EXPECT_DOUBLE_EQ(part(dealt, "experts").bytes, 24 * 8 * (1 - 2401.0 / 4096) * kExpertBytes);
  EXPECT_EQ(part(dealt, "experts").flop, 24 * 4 * 2 * kExpertWeights);
  EXPECT_EQ(part(dealt, "lm_head").bytes, 2 * kHeadWeights);
}

TEST(Roofline, ARecurrentStateIsReadAndWritten) {
  PlannedModel model(kGptOss20b);
  const RankInputs inputs = model.inputs();
  RankPlan rank = plan_ranks(inputs).value().front();
  rank.kv.state = {.layers = {1, 3}, .layer_bytes = {4096}};
  const RankWork work = rank_work(inputs, rank);
  const TokenCost decoded = decode_cost(work, {.tokens = 8, .tokens_of_sequence = 100});
  EXPECT_EQ(part(decoded, "state").bytes, 2 * 2 * 4096);
  EXPECT_EQ(part(decoded, "state").flop, 5 * 2 * 1024);
  const TokenCost prompt = prompt_cost(work, {.tokens = 8, .tokens_of_sequence = 64});
  EXPECT_EQ(part(prompt, "state").bytes, 2 * 2 * 4096 / 8);
}

TEST(Roofline, TheSlowerOfMemoryAndArithmeticBinds) {
  TokenCost cost;
  cost.bytes = 4e9;
  cost.flop = 8e9;
  EXPECT_EQ(cost.intensity(), 2);
  RateBound bound = rate_bound(cost, {.bytes_per_second = 40e9, .flop_per_second = 1e12}, 1);
  EXPECT_EQ(bound.tokens_per_second, 10);
  EXPECT_TRUE(bound.by_memory);
  bound = rate_bound(cost, {.bytes_per_second = 400e9, .flop_per_second = 400e9}, 3);
  EXPECT_EQ(bound.tokens_per_second, 150);
  EXPECT_FALSE(bound.by_memory);
  bound = rate_bound(cost, {.bytes_per_second = 0, .flop_per_second = 8e9}, 1);
  EXPECT_EQ(bound.tokens_per_second, 1);
  EXPECT_EQ(rate_bound(cost, {}, 1).tokens_per_second, 0);
}

}  // namespace
}  // namespace rota
