#include "engine/engine_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/load_engine.h"

namespace rota {
namespace {

using ::testing::HasSubstr;

TEST(EngineOptions, TravelAsJson) {
  EngineOptions options;
  options.model = "org/name";
  options.dtype = DtypeChoice::kFloat32;
  options.weights = WeightsChoice::kLocked;
  options.load_format = LoadFormat::kDummy;
  options.generation_config = GenerationConfigChoice::kNone;
  options.moe = {.backend = "ref", .hidden_alignment = 256, .intermediate_alignment = 128};
  options.parallel = {.tensor_parallel_size = 2,
                      .data_parallel_size = 4,
                      .enable_expert_parallel = true,
                      .all2all_backend = "low_latency",
                      .expert_placement_strategy = "round_robin"};
  options.memory_utilization = 0.5;
  options.enable_prefix_caching = false;
  options.mamba_block_size = 192;
  options.mamba_snapshot_bytes = int64_t{1} << 40;
  options.seed = -5;
  const nlohmann::json json = to_json(options);
  const EngineOptions got = engine_options_from_json(json).value();
  EXPECT_EQ(to_json(got), json);
  EXPECT_EQ(got.moe.hidden_alignment, 256);
  EXPECT_EQ(got.parallel.data_parallel_size, 4);
  EXPECT_TRUE(got.parallel.enable_expert_parallel);
  EXPECT_EQ(got.weights, WeightsChoice::kLocked);
  EXPECT_EQ(got.mamba_block_size, 192);
  EXPECT_EQ(got.mamba_snapshot_bytes, int64_t{1} << 40);
}

TEST(EngineOptions, WrongJsonIsAnErrorThatNamesTheMember) {
  EXPECT_FALSE(engine_options_from_json(nlohmann::json::array()).ok());
  EXPECT_FALSE(engine_options_from_json(nlohmann::json()).ok());
  const auto message = [](const char* text) {
    return engine_options_from_json(nlohmann::json::parse(text)).status().message();
  };
  EXPECT_THAT(message(R"({"max_num_seqs": "7"})"), HasSubstr("max_num_seqs"));
  EXPECT_THAT(message(R"({"dtype": "float16"})"), HasSubstr("--dtype"));
  EXPECT_THAT(message(R"({"new_flag": 1})"), HasSubstr("another build"));
}

TEST(EngineOptions, RangesNameTheFlag) {
  EngineOptions options;
  EXPECT_FALSE(validate(options).ok());  // no model
  options.model = "org/name";
  EXPECT_TRUE(validate(options).ok());
  options.max_num_seqs = 0;
  EXPECT_THAT(validate(options).message(), HasSubstr("--max-num-seqs"));
  options.max_num_seqs = 1;
  options.mamba_block_size = 1000;
  EXPECT_THAT(validate(options).message(),
              HasSubstr("--mamba-block-size: 1000 is no multiple of 64"));
  options.mamba_block_size = 0;
  options.mamba_snapshot_bytes = -2;
  EXPECT_THAT(validate(options).message(), HasSubstr("--mamba-snapshot-bytes"));
  options.mamba_snapshot_bytes = 0;
  EXPECT_TRUE(validate(options).ok());
  options.memory_utilization = 1.5;
  EXPECT_THAT(validate(options).message(), HasSubstr("--memory-utilization"));
  options.memory_utilization = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(validate(options).ok());
}

TEST(EngineOptions, SeveralRanksAreRefusedBeforeAnythingIsRead) {
  EngineOptions options;
  options.model = "/nowhere";
  options.parallel.tensor_parallel_size = 2;
  EXPECT_TRUE(validate(options).ok());
  EXPECT_THAT(load_engine(options).status().message(), HasSubstr("--tensor-parallel-size 2"));
}

TEST(EngineOptions, WordsAreThoseOfTheFlags) {
  EXPECT_EQ(parse_dtype_choice("bfloat16").value(), DtypeChoice::kBfloat16);
  EXPECT_EQ(parse_weights_choice("mapped").value(), WeightsChoice::kMapped);
  EXPECT_EQ(parse_load_format("dummy").value(), LoadFormat::kDummy);
  EXPECT_EQ(parse_generation_config_choice("vllm").value(), GenerationConfigChoice::kNone);
  EXPECT_THAT(parse_dtype_choice("half").status().message(),
              HasSubstr("none of auto, bfloat16, float32"));
}

TEST(DefaultSampling, IsWhatTheAuthorsSuggest) {
  GenerationConfig generation;
  generation.temperature = 0.6;
  generation.top_k = 40;
  const SamplingParams params = default_sampling(generation);
  EXPECT_EQ(params.temperature, 0.6);
  EXPECT_EQ(params.top_k, 40);
  EXPECT_EQ(params.top_p, 1.0);
  EXPECT_THAT(describe_sampling(params), HasSubstr("temperature 0.6, top_p 1, top_k 40"));
  generation.temperature = 100;  // out of the range that requests may have
  EXPECT_TRUE(validate(default_sampling(generation), 1000).ok());
}

}  // namespace
}  // namespace rota
