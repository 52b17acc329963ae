#include "model/tensor_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/model.h"
#include "platform/cpu.h"
#include "tensor/testing/golden_file.h"

namespace rota {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ModelConfig config_of(const std::string& pack, const std::string& overrides = "") {
  auto config =
      read_model_config(testing::golden_path("models/" + pack), {.hf_overrides = overrides});
  ROTA_CHECK(config.ok(), config.status().message());
  return std::move(config).value();
}

std::vector<int> sizes_that_work(const ModelConfig& config, int most) {
  std::vector<int> sizes;
  for (int tp = 1; tp <= most; ++tp) {
    if (check_tensor_parallel(config, tp).ok()) sizes.push_back(tp);
  }
  return sizes;
}

struct Refusal {
  const char* name;
  const char* pack;
  const char* overrides;
  int tp;
  const char* what;
  const char* sizes;
};
std::ostream& operator<<(std::ostream& out, const Refusal& refusal) { return out << refusal.name; }

class CheckTensorParallel : public ::testing::TestWithParam<Refusal> {};

TEST_P(CheckTensorParallel, SaysWhatCannotBeCutAndWhichSizesWork) {
  const Refusal& c = GetParam();
  const Status status = check_tensor_parallel(config_of(c.pack, c.overrides), c.tp);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr(fmt::format("tensor parallel size {}:", c.tp)), HasSubstr(c.what)));
  EXPECT_TRUE(status.message().ends_with(fmt::format("work for this model: {}", c.sizes)))
      << status.message();
}

constexpr const char* kNano =
    R"({"num_attention_heads": 32, "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8})";

INSTANTIATE_TEST_SUITE_P(
    Refusals, CheckTensorParallel,
    ::testing::Values(
        Refusal{"HeadsByThree", "gptoss-mxfp4-h160", "", 3,
                "4 attention heads over 2 KV heads cannot be cut into 3 equal parts", "1, 2, 4"},
        Refusal{"MoreRanksThanHeads", "gptoss-mxfp4-h160", "", 16, "4 attention heads", "1, 2, 4"},
        // Three ranks would divide 6 query heads, but the second would ask two KV heads for parts.
        Refusal{"APartOfTwoGroups", "gptoss-bf16-h160", "", 3, "6 attention heads", "1, 2, 6"},
        Refusal{"RealHeads", "gptoss-mxfp4-h160",
                R"({"num_attention_heads": 64, "num_key_value_heads": 8})", 3, "64 attention heads",
                "1, 2, 4, 8, 16, 32, 64"},
        Refusal{"MambaGroups", "nemotron-bf16-h336", "", 4,
                "6 Mamba2 heads in 2 groups cannot be cut into 4", "1, 2"},
        Refusal{"RealMambaGroups", "nemotron-bf16-h336", kNano, 16, "64 Mamba2 heads in 8 groups",
                "1, 2, 4, 8"},
        Refusal{"Vocabulary", "mixtral-bf16-h72", R"({"vocab_size": 3})", 4, "a vocabulary of 3",
                "1, 2"},
        Refusal{"BlocksOfNvfp4", "nemotron-nvfp4-h112", R"({"mamba_head_dim": 8})", 2,
                "backbone.layers.0.mixer.out_proj: parts of 24 of its 48 inputs cut a "
                "quantisation block of 16",
                "1"},
        Refusal{"BlocksOfFactors", "qwen3-fp8-h288",
                R"({"head_dim": 48, "num_attention_heads": 8, "num_key_value_heads": 4})", 2,
                "o_proj: parts of 192 of its 384 inputs cut a quantisation block of 128", "1"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(CheckTensorParallel, TheSizesItNamesAreTheOnesThatPass) {
  EXPECT_EQ(sizes_that_work(config_of("gptoss-mxfp4-h160"), 70), (std::vector<int>{1, 2, 4}));
  EXPECT_EQ(sizes_that_work(config_of("gptoss-bf16-h160"), 70), (std::vector<int>{1, 2, 6}));
  EXPECT_EQ(sizes_that_work(config_of("nemotron-bf16-h336", kNano), 70),
            (std::vector<int>{1, 2, 4, 8}));
  EXPECT_FALSE(check_tensor_parallel(config_of("gptoss-mxfp4-h160"), 0).ok());
}

// Every head, group and row is on one rank, and KV heads on each whose queries ask them.
TEST(TensorShard, RanksHoldEverythingOnce) {
  for (const char* pack : {"gptoss-mxfp4-h160", "gptoss-bf16-h160", "nemotron-bf16-h336"}) {
    const ModelConfig config = config_of(pack);
    for (const int tp : sizes_that_work(config, 8)) {
      TensorShard before;
      for (int rank = 0; rank < tp; ++rank) {
        const TensorShard shard = tensor_shard(config, tp, rank);
        EXPECT_EQ(shard.rank, rank);
        EXPECT_EQ(shard.query_heads.begin, before.query_heads.end);
        EXPECT_EQ(shard.mamba_groups.begin, before.mamba_groups.end);
        EXPECT_EQ(shard.mamba_heads.begin, before.mamba_heads.end);
        EXPECT_EQ(shard.vocabulary.begin, before.vocabulary.end);
        EXPECT_EQ(shard.kv_heads.begin, shard.query_heads.begin / (config.heads / config.kv_heads));
        EXPECT_EQ(shard.kv_heads.size(), std::max<int64_t>(1, config.kv_heads / tp));
        before = shard;
      }
      EXPECT_EQ(before.query_heads.end, config.heads);
      EXPECT_EQ(before.kv_heads.end, config.kv_heads);
      EXPECT_EQ(before.mamba_groups.end, config.mamba.groups);
      EXPECT_EQ(before.mamba_heads.end, config.mamba.heads);
      EXPECT_EQ(before.vocabulary.end, config.vocab);
    }
  }
}

TEST(TensorShard, OneRankHoldsTheModel) {
  const ModelConfig config = config_of("nemotron-bf16-h336");
  const ModelConfig here = config_of_rank(config, tensor_shard(config, 1, 0));
  EXPECT_EQ(here.heads, config.heads);
  EXPECT_EQ(here.kv_heads, config.kv_heads);
  EXPECT_EQ(here.mamba.projected(), config.mamba.projected());
}

TEST(TensorShard, ARankKeepsItsOwnKvHeadsAndStates) {
  const ModelConfig config = config_of("nemotron-bf16-h336");
  const KernelTable& kernels = kernels_for(Isa::kRef, detect_cpu());
  const KvSpec whole = make_kv_spec(config, Compute::kBf16, kernels);
  const ModelConfig half = config_of_rank(config, tensor_shard(config, 2, 1));
  const KvSpec spec = make_kv_spec(half, Compute::kBf16, kernels);
  EXPECT_EQ(spec.shape.kv_heads, 1);
  EXPECT_EQ(spec.page_bytes * 2, whole.page_bytes);
  EXPECT_EQ(spec.state.layer_bytes * 2, whole.state.layer_bytes);
}

}  // namespace
}  // namespace rota
