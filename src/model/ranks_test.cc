// A model over the ranks of a tensor-parallel group, as threads: what they compute together is what
// one rank computes alone, and each of them has the same bits.
#include "model/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>

#include "comm/loopback.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "model/tensor_parallel.h"
#include "platform/cpu.h"
#include "tensor/testing/golden_file.h"

namespace rota {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kTokens = 32;
constexpr CommOptions kChecked{.timeout_seconds = 60, .check_collectives = true};

template <typename T>
T taken(Result<T> result) {
  ROTA_CHECK(result.ok(), result.status().message());
  return std::move(result).value();
}

std::vector<uint32_t> bits(std::span<const float> values) {
  std::vector<uint32_t> result;
  for (const float value : values) result.push_back(std::bit_cast<uint32_t>(value));
  return result;
}

// Of the difference, against the expected one's.
double relative_rms(std::span<const float> found, std::span<const float> expected) {
  double error = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(double{found[i]} - double{expected[i]}, 2);
    size += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(error / size);
}

std::vector<int64_t> argmaxes(std::span<const float> logits, int64_t vocab) {
  std::vector<int64_t> result;
  for (auto row = logits.begin(); row < logits.end(); row += vocab) {
    result.push_back(std::max_element(row, row + vocab) - row);
  }
  return result;
}

// One rank's model with a team and a cache of one sequence.
class RankModel {
 public:
  RankModel(const ModelConfig& config, const Checkpoint& checkpoint, Compute compute,
            const RankContext& ranks)
      : config_(config) {
    ModelOptions options;
    options.compute = compute;
    options.isa = available_kernels(detect_cpu()).back()->isa;
    options.ranks = ranks;
    options.max_batch_tokens = kTokens;
    options.max_logit_rows = kTokens;
    options.max_model_len = kTokens;
    model_ = taken(load_model(config, checkpoint, options, team_));
    cache_.emplace(taken(KvCache::allocate(model_->kv_spec(), 2, 1)));
    planned_workspace_ = taken(plan_workspace(config, options, team_));
  }

  const Model& model() const { return *model_; }
  int64_t planned_workspace() const { return planned_workspace_; }

  // The next tokens of the sequence; logits of all of them.
  std::vector<float> step(std::span<const int32_t> ids,
                          std::span<const int64_t> tokens_of_group = {}) {
    return taken(try_step(ids, tokens_of_group));
  }

  Result<std::vector<float>> try_step(std::span<const int32_t> ids,
                                      std::span<const int64_t> tokens_of_group = {}) {
    const std::vector<int32_t> pages{0, 1};
    std::vector<std::span<const int32_t>> tables;
    for (size_t group = 0; group < model_->kv_spec().groups.size(); ++group) {
      tables.push_back(std::span(pages).subspan(group, 1));
    }
    const SequenceChunk chunk{.first_row = 0,
                              .tokens = std::ssize(ids),
                              .first_position = length_,
                              .block_tables = tables,
                              .state_slot = 0};
    std::vector<int32_t> rows(ids.size());
    std::iota(rows.begin(), rows.end(), 0);
    std::vector<float> logits(ids.size() * static_cast<size_t>(config_.vocab));
    ROTA_RETURN_IF_ERROR(model_->forward(
        {.token_ids = ids,
         .chunks = {&chunk, ids.empty() ? 0u : 1u},
         .logit_rows = rows,
         .trace = nullptr,
         .tokens_of_group = tokens_of_group},
        *cache_,
        MatrixView<float>(logits.data(), std::ssize(ids), Extent(config_.vocab), config_.vocab)));
    length_ += std::ssize(ids);
    return logits;
  }

  // A prompt, then tokens one at a time.
  std::vector<float> run() {
    const std::vector<int32_t> ids{3, 141, 59, 26, 5, 35, 89, 79, 32};
    std::vector<float> all = step(std::span(ids).first(7));
    for (size_t i = 7; i < ids.size(); ++i) {
      const std::vector<float> more = step(std::span(ids).subspan(i, 1));
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }

 private:
  const ModelConfig& config_;
  ThreadTeam team_{{.threads = 2, .pin = false}};
  std::unique_ptr<Model> model_;
  std::optional<KvCache> cache_;
  int64_t planned_workspace_ = 0;
  int64_t length_ = 0;
};

// A pack of the goldens, to be served by any number of ranks.
struct Pack {
  explicit Pack(const std::string& name)
      : config(taken(read_model_config(testing::golden_path("models/" + name)))),
        checkpoint(taken(Checkpoint::open(testing::golden_path("models/" + name)))) {}

  // What `use` makes of each rank's model, on a thread of its own.
  template <typename Use>
  void on_ranks(int tp, bool expert_parallel, Compute compute, const Use& use) const {
    LoopbackRanks ranks(tp, kChecked);
    ranks.run([&](Communicator& rank) {
      const RankContext context{
          .world = &rank,
          .tensor = &rank,
          .parallel = {
              .shape = {
                  .dp = 1, .tp = tp, .expert_parallel = expert_parallel, .rank = rank.rank()}}};
      RankModel model(config, checkpoint, compute, context);
      use(rank.rank(), model);
    });
  }

  ModelConfig config;
  Checkpoint checkpoint;
};

struct Case {
  const char* pack;
  int tp;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.pack << " tp " << c.tp;
}

class TensorParallelModel : public ::testing::TestWithParam<Case> {};

TEST_P(TensorParallelModel, RanksComputeWhatOneComputesAndHaveTheSameBits) {
  const Pack pack(GetParam().pack);
  const int tp = GetParam().tp;
  const std::vector<float> alone =
      RankModel(pack.config, pack.checkpoint, Compute::kFloat32, {}).run();
  for (const bool expert_parallel : {false, true}) {
    std::vector<std::vector<float>> found(static_cast<size_t>(tp));
    pack.on_ranks(tp, expert_parallel, Compute::kFloat32, [&](int rank, RankModel& model) {
      found[static_cast<size_t>(rank)] = model.run();
    });
    EXPECT_LT(relative_rms(found[0], alone), 1e-5);
    EXPECT_EQ(argmaxes(found[0], pack.config.vocab), argmaxes(alone, pack.config.vocab));
    for (const auto& one : found) EXPECT_EQ(bits(one), bits(found[0]));
  }
}

// BF16 rounds what another order of sums has changed: near, and the same bits on all ranks all the
// same.
TEST_P(TensorParallelModel, RanksHaveTheSameBitsInBf16) {
  const Pack pack(GetParam().pack);
  const int tp = GetParam().tp;
  std::vector<std::vector<float>> found(static_cast<size_t>(tp));
  pack.on_ranks(tp, false, Compute::kBf16, [&](int rank, RankModel& model) {
    found[static_cast<size_t>(rank)] = model.run();
  });
  const std::vector<float> alone =
      RankModel(pack.config, pack.checkpoint, Compute::kBf16, {}).run();
  EXPECT_LT(relative_rms(found[0], alone), 0.1);
  for (const auto& one : found) EXPECT_EQ(bits(one), bits(found[0]));
}

TEST_P(TensorParallelModel, ARankKeepsItsHeadsAlone) {
  const Pack pack(GetParam().pack);
  const int tp = GetParam().tp;
  pack.on_ranks(tp, false, Compute::kFloat32, [&](int rank, RankModel& model) {
    const KvSpec& spec = model.model().kv_spec();
    const TensorShard shard = tensor_shard(pack.config, tp, rank);
    EXPECT_EQ(spec.shape.kv_heads, shard.kv_heads.size());
    EXPECT_EQ(spec.shape.kv_heads, std::max<int64_t>(1, pack.config.kv_heads / tp));
    EXPECT_EQ(model.model().config().heads, pack.config.heads);
    EXPECT_EQ(model.planned_workspace(), model.model().workspace_bytes());
  });
}

TEST_P(TensorParallelModel, AStepWithoutATokenRuns) {
  const Pack pack(GetParam().pack);
  pack.on_ranks(GetParam().tp, true, Compute::kFloat32, [&](int, RankModel& model) {
    const std::vector<int32_t> ids{3, 141, 59};
    const std::vector<float> first = model.step(ids);
    EXPECT_TRUE(model.step({}).empty());
    EXPECT_FALSE(model.step(ids).empty());
  });
}

INSTANTIATE_TEST_SUITE_P(
    Packs, TensorParallelModel,
    ::testing::Values(Case{"gptoss-mxfp4-h160", 2}, Case{"gptoss-mxfp4-h160", 4},
                      Case{"gptoss-mxfp4-h288", 2}, Case{"gptoss-bf16-h160", 2},
                      Case{"gptoss-bf16-h160", 6}, Case{"mixtral-bf16-h72", 2},
                      Case{"mixtral-bf16-h72", 4}, Case{"mixtral-fp8-h80", 4},
                      Case{"qwen3-bf16-h160", 4}, Case{"qwen3-fp8-h288", 2},
                      Case{"qwen3-fp8-h288", 4}, Case{"nemotron-bf16-h336", 2},
                      Case{"nemotron-fp8-h144", 2}, Case{"nemotron-nvfp4-h112", 2},
                      Case{"nemotron-latent-bf16-h112", 2}, Case{"nemotron-latent-mixed-h112", 2}),
    [](const auto& info) {
      std::string name = fmt::format("{}_tp{}", info.param.pack, info.param.tp);
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

// Data-parallel ranks, each with a sequence of its own, some steps without a token.
struct Groups {
  const char* pack;
  int dp;
  int tp;
  bool expert_parallel;
  Transport transport;
};
std::ostream& operator<<(std::ostream& out, const Groups& c) {
  return out << c.pack << " dp " << c.dp << " tp " << c.tp << (c.expert_parallel ? " ep " : " ")
             << to_string(c.transport);
}

class DataParallelModel : public ::testing::TestWithParam<Groups> {
 protected:
  // Tokens of each of at most 3 groups in each step.
  static constexpr std::array<std::array<int64_t, 3>, 5> kSteps = {
      {{7, 0, 2}, {0, 0, 1}, {1, 4, 0}, {0, 3, 1}, {2, 1, 1}}};

  static std::vector<int32_t> ids_of(int group) {
    size_t count = 0;
    for (const auto& tokens : kSteps) {
      count += static_cast<size_t>(tokens[static_cast<size_t>(group)]);
    }
    std::vector<int32_t> ids(count);
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int32_t>(37 * i + 11 * static_cast<size_t>(group)) % 500;
    }
    return ids;
  }

  // All logits of a group's sequence.
  static std::vector<float> run(RankModel& model, int group, int dp) {
    const std::vector<int32_t> ids = ids_of(group);
    std::vector<float> all;
    size_t first = 0;
    for (const auto& tokens : kSteps) {
      const auto count = static_cast<size_t>(tokens[static_cast<size_t>(group)]);
      const std::vector<float> some = model.step(std::span(ids).subspan(first, count),
                                                 std::span(tokens).first(static_cast<size_t>(dp)));
      all.insert(all.end(), some.begin(), some.end());
      first += count;
    }
    return all;
  }

  static std::vector<std::vector<float>> run_ranks(const Pack& pack, const Groups& c) {
    std::vector<std::vector<float>> found(static_cast<size_t>(c.dp * c.tp));
    LoopbackRanks ranks(c.dp * c.tp, kChecked);
    ranks.run([&](Communicator& world) {
      const auto tensor = taken(world.split(world.rank() / c.tp));
      const RankContext context{.world = &world,
                                .tensor = tensor.get(),
                                .parallel = {.shape = {.dp = c.dp,
                                                       .tp = c.tp,
                                                       .expert_parallel = c.expert_parallel,
                                                       .rank = world.rank()},
                                             .transport = c.transport}};
      RankModel model(pack.config, pack.checkpoint, Compute::kFloat32, context);
      found[static_cast<size_t>(world.rank())] = run(model, context.data_rank(), c.dp);
    });
    return found;
  }
};

TEST_P(DataParallelModel, AnEmptyRankMeetsTheOthersAndChangesNothing) {
  const Groups& c = GetParam();
  const Pack pack(c.pack);
  const std::vector<std::vector<float>> found = run_ranks(pack, c);
  for (int group = 0; group < c.dp; ++group) {
    RankModel alone(pack.config, pack.checkpoint, Compute::kFloat32, {});
    const std::vector<int32_t> ids = ids_of(group);
    std::vector<float> want;
    for (const int32_t id : ids) {
      const std::vector<float> row = alone.step({&id, 1});
      want.insert(want.end(), row.begin(), row.end());
    }
    const auto& first = found[static_cast<size_t>(group * c.tp)];
    if (c.expert_parallel && c.tp == 1) {
      EXPECT_EQ(bits(first), bits(want)) << "group " << group;
    }
    EXPECT_LT(relative_rms(first, want), 1e-5) << "group " << group;
    for (int rank = 1; rank < c.tp; ++rank) {
      EXPECT_EQ(bits(found[static_cast<size_t>(group * c.tp + rank)]), bits(first));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Packs, DataParallelModel,
    ::testing::Values(Groups{"gptoss-mxfp4-h160", 3, 1, true, Transport::kAllgatherReducescatter},
                      Groups{"gptoss-mxfp4-h160", 2, 2, false, Transport::kAllgatherReducescatter},
                      Groups{"mixtral-bf16-h72", 2, 2, true, Transport::kAlltoallv},
                      Groups{"qwen3-bf16-h160", 3, 1, true, Transport::kLowLatency},
                      Groups{"nemotron-latent-bf16-h112", 2, 2, true, Transport::kAlltoallv},
                      Groups{"nemotron-nvfp4-h112", 3, 1, true, Transport::kAlltoallv}),
    [](const auto& info) {
      std::string name =
          fmt::format("{}_dp{}_tp{}_{}_{}", info.param.pack, info.param.dp, info.param.tp,
                      info.param.expert_parallel ? "ep" : "cut", to_string(info.param.transport));
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

// hidden 72, 3 layers, 4 heads of 18 over 2 KV heads, 6 experts of 104, top 2, vocabulary 2048; TP
// 4: one head, one KV head, 512 rows of lm_head, 26 rows of each expert.
TEST(TensorParallelBytes, ARankReadsItsPartAlone) {
  const Pack pack("mixtral-bf16-h72");
  pack.on_ranks(4, false, Compute::kBf16, [&](int, RankModel& model) {
    const int64_t norms = 2 * 72 * 2;
    const int64_t attention = (18 + 18 + 18 + 18) * 72 * 2;
    const int64_t router = 6 * 72 * 2;
    const int64_t expert = 3 * 26 * 72 * 2;
    const int64_t layer = norms + attention + router;
    const int64_t head = 512 * 72 * 2;
    EXPECT_EQ(model.model().bytes_per_token(), 3 * (layer + 2 * expert) + 2 * 72 * 2 + head);
    // The embedding is whole on every rank.
    EXPECT_EQ(model.model().mapped_bytes(),
              3 * (layer + 6 * expert) + 72 * 2 + head + 2048 * 72 * 2);
    EXPECT_EQ(model.model().copied_bytes(), 0);
  });
}

Status load_status(const Pack& pack, const RankContext& ranks) {
  ThreadTeam team({.threads = 1, .pin = false});
  ModelOptions options;
  options.ranks = ranks;
  options.max_batch_tokens = kTokens;
  options.max_logit_rows = kTokens;
  options.max_model_len = kTokens;
  return status_of(load_model(pack.config, pack.checkpoint, options, team));
}

TEST(LoadModelOnRanks, RefusesASizeThatHeadsCannotBeCutBy) {
  const Pack pack("mixtral-bf16-h72");
  LoopbackRanks ranks(3, kChecked);
  ranks.run([&](Communicator& rank) {
    const Status status = load_status(
        pack,
        {.world = &rank, .tensor = &rank, .parallel = {.shape = {.tp = 3, .rank = rank.rank()}}});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("sizes that work for this model: 1, 2, 4"));
  });
}

TEST(LoadModelOnRanks, RefusesCommunicatorsOfAnotherShape) {
  const Pack pack("mixtral-bf16-h72");
  const Status status = load_status(pack, {.parallel = {.shape = {.tp = 2, .rank = 1}}});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("world communicator: rank 0 of 1, expected rank 1 of 2"));
}

TEST(LoadModelOnRanks, AloneAStepWithoutATokenIsAnError) {
  const Pack pack("mixtral-bf16-h72");
  RankModel alone(pack.config, pack.checkpoint, Compute::kFloat32, {});
  const auto empty = alone.try_step({});
  ASSERT_FALSE(empty.ok());
  EXPECT_THAT(empty.status().message(), HasSubstr("a step of 0 tokens, expected 1 to"));
}

}  // namespace
}  // namespace rota
