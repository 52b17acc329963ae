// Whole models over ranks, as threads of this process: packs x (TP, DP) x experts dealt or cut x
// transports x placements x hidden alignments x precisions. Each data-parallel rank has prompts of
// its own, some have none; every collective is checked. Where experts and heads are whole the
// logits are those of one process without padding, bit for bit; elsewhere float32 is within the
// pack's tolerance and the greedy tokens are its own.
//
// Without ROTA_FULL=1 a seeded sample runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>

#include "comm/loopback.h"
#include "golden/cases.h"
#include "golden/compare.h"
#include "golden/golden_pack.h"
#include "model/tensor_parallel.h"

namespace rota::golden {
namespace {

constexpr size_t kSample = 150;
constexpr size_t kDecodeSteps = 3;

constexpr std::array kPacks = {"gptoss-mxfp4-h160",
                               "gptoss-mxfp4-h288",
                               "gptoss-bf16-h160",
                               "mixtral-bf16-h72",
                               "mixtral-fp8-h80",
                               "qwen3-bf16-h160",
                               "qwen3-fp8-h288",
                               "nemotron-nvfp4-h112",
                               "nemotron-fp8-h144",
                               "nemotron-latent-bf16-h112",
                               "nemotron-latent-mixed-h112"};

struct RankCase {
  size_t pack = 0;
  Compute compute = Compute::kFloat32;
  MoeParallel parallel;  // but for the rank
  int64_t hidden_alignment = 0;

  const ParallelShape& shape() const { return parallel.shape; }
  bool same_bits() const {
    return shape().ranks() == 1 || (shape().expert_parallel && shape().tp == 1);
  }
  std::string name() const {
    return fmt::format("{} {}, tp {} dp {} {} {} {}, hidden alignment {}", kPacks[pack],
                       compute == Compute::kBf16 ? "bfloat16" : "float32", shape().tp, shape().dp,
                       shape().expert_parallel ? "ep" : "cut", to_string(parallel.transport),
                       to_string(parallel.placement), hidden_alignment);
  }
};

std::vector<MoeParallel> ways() {
  constexpr std::array<std::pair<int, int>, 8> kSizes = {
      {{1, 1}, {1, 2}, {1, 3}, {1, 5}, {1, 8}, {2, 1}, {2, 2}, {4, 1}}};
  constexpr std::array kTransports = {Transport::kAllgatherReducescatter, Transport::kAlltoallv,
                                      Transport::kLowLatency};
  std::vector<MoeParallel> all;
  for (const auto& [tp, dp] : kSizes) {
    const std::span transports =
        dp > 1 ? std::span<const Transport>(kTransports) : std::span<const Transport>();
    const Transport first = dp > 1 ? kTransports[0] : Transport::kNoDpEp;
    all.push_back({.shape = {.dp = dp, .tp = tp}, .transport = first});
    for (const ExpertPlacement placement :
         {ExpertPlacement::kLinear, ExpertPlacement::kRoundRobin}) {
      const ParallelShape dealt{.dp = dp, .tp = tp, .expert_parallel = true};
      if (dp == 1) all.push_back({dealt, Transport::kNoDpEp, placement});
      for (const Transport transport : transports) all.push_back({dealt, transport, placement});
    }
  }
  return all;
}

const ModelConfig& config_of(size_t pack) {
  static std::map<size_t, ModelConfig> known;
  const auto at = known.find(pack);
  if (at != known.end()) return at->second;
  auto config = read_model_config(small_pack_dir(kPacks[pack]));
  ROTA_CHECK(config.ok(), config.status().message());
  return known.emplace(pack, std::move(config).value()).first->second;
}

// 2048 is where the low-latency kind's list of widths begins.
std::vector<RankCase> all_cases() {
  std::vector<RankCase> cases;
  for (size_t pack = 0; pack < kPacks.size(); ++pack) {
    for (const MoeParallel& way : ways()) {
      if (!check_tensor_parallel(config_of(pack), way.shape.tp).ok()) continue;
      for (const Compute compute : {Compute::kFloat32, Compute::kBf16}) {
        for (const int64_t alignment : {0, 256, 2048}) {
          const RankCase c{pack, compute, way, alignment};
          if (c.same_bits() || compute == Compute::kFloat32) cases.push_back(c);
        }
      }
    }
  }
  return cases;
}

std::vector<RankCase> cases_of(size_t pack) {
  std::vector<RankCase> cases = all_cases();
  if (!full_grid()) {
    std::shuffle(cases.begin(), cases.end(), std::mt19937(20250301));
    cases.resize(kSample);
  }
  std::erase_if(cases, [&](const RankCase& c) { return c.pack != pack; });
  return cases;
}

// Logits [1 + kDecodeSteps, V] of each prompt: of its last position, then of each decoded one.
using PromptLogits = std::vector<std::vector<float>>;

HarnessOptions options_of(const RankCase& c) {
  HarnessOptions options;
  for (const KernelTable* table : available_kernels(detect_cpu())) {
    const bool emulated = std::string_view(table->name).find("emulated") != std::string_view::npos;
    if (!emulated) options.kernels = table;
  }
  options.compute = c.compute;
  options.moe.hidden_alignment = c.hidden_alignment;
  options.threads = 1;
  options.max_batch_tokens = 256;
  options.max_model_len = 192;
  options.pages = 48;
  return options;
}

// One of the ranks: the prompts of its data-parallel group, side by side.
class Rank {
 public:
  Rank(const GoldenPack& pack, const HarnessOptions& options)
      : pack_(pack), dp_(options.ranks.shape().dp), group_(options.ranks.data_rank()) {
    auto harness = Harness::load(pack.model_dir, options);
    ROTA_CHECK(harness.ok(), harness.status().message());
    harness_ = std::move(harness).value();
  }

  // Of this group's prompts; the others' are empty.
  PromptLogits run() {
    PromptLogits logits(pack_.prompts.size());
    std::vector<int> sequences;
    for (size_t i = 0; i < pack_.prompts.size(); ++i) {
      sequences.push_back(group_of(i) == group_ ? harness_->new_sequence() : -1);
    }
    for (size_t step = 0; step <= kDecodeSteps; ++step) run_step(step, sequences, logits);
    return logits;
  }

 private:
  int group_of(size_t prompt) const { return static_cast<int>(prompt) % dp_; }

  std::span<const int32_t> ids(size_t prompt, size_t step) const {
    const Prompt& it = pack_.prompts[prompt];
    return step == 0 ? std::span(it.ids) : std::span(it.greedy).subspan(step - 1, 1);
  }

  void run_step(size_t step, const std::vector<int>& sequences, PromptLogits& logits) {
    std::vector<Harness::Piece> pieces;
    std::vector<int64_t> tokens(static_cast<size_t>(dp_));
    for (size_t i = 0; i < sequences.size(); ++i) {
      tokens[static_cast<size_t>(group_of(i))] += std::ssize(ids(i, step));
      if (sequences[i] >= 0) pieces.push_back({sequences[i], ids(i, step)});
    }
    const auto found = harness_->step(pieces, tokens);
    ROTA_CHECK(found.ok(), found.status().message());
    int64_t row = -1;
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (sequences[i] < 0) continue;
      row += std::ssize(ids(i, step));
      const auto last = found->logits(row);
      logits[i].insert(logits[i].end(), last.begin(), last.end());
    }
  }

  const GoldenPack& pack_;
  int dp_;
  int group_;
  std::unique_ptr<Harness> harness_;
};

// What all ranks made of the prompts together; those of one group must have the same bits.
PromptLogits run_ranks(const GoldenPack& pack, const RankCase& c) {
  const ParallelShape& shape = c.shape();
  std::vector<PromptLogits> found(static_cast<size_t>(shape.ranks()));
  LoopbackRanks ranks(shape.ranks(), {.timeout_seconds = 120, .check_collectives = true});
  ranks.run([&](Communicator& world) {
    auto tensor = world.split(world.rank() / shape.tp);
    ROTA_CHECK(tensor.ok(), tensor.status().message());
    HarnessOptions options = options_of(c);
    options.ranks = {.world = &world, .tensor = tensor->get(), .parallel = c.parallel};
    options.ranks.parallel.shape.rank = world.rank();
    Rank rank(pack, options);
    found[static_cast<size_t>(world.rank())] = rank.run();
    ROTA_CHECK(world.barrier().ok(), "windows are let go together");
  });
  PromptLogits all(pack.prompts.size());
  for (size_t prompt = 0; prompt < all.size(); ++prompt) {
    for (const PromptLogits& of_rank : found) {
      if (of_rank[prompt].empty()) continue;
      if (all[prompt].empty()) all[prompt] = of_rank[prompt];
      EXPECT_TRUE(same_bits(of_rank[prompt], all[prompt])) << "a rank of a tensor-parallel group";
    }
  }
  return all;
}

class RanksSweep : public ::testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    auto pack = GoldenPack::open(small_pack_dir(kPacks[GetParam()]));
    ASSERT_TRUE(pack.ok()) << pack.status().message();
    pack_.emplace(std::move(pack).value());
  }

  // One process without padding, each prompt alone.
  const PromptLogits& alone(Compute compute) {
    PromptLogits& known = alone_[compute];
    if (!known.empty()) return known;
    for (const Prompt& prompt : pack_->prompts) {
      GoldenPack one = *pack_;
      one.prompts = {prompt};
      known.push_back(Rank(one, options_of({GetParam(), compute, MoeParallel{}, 0})).run().front());
    }
    return known;
  }

  void check(const RankCase& c) {
    const PromptLogits found = run_ranks(*pack_, c);
    const PromptLogits& expected = alone(c.compute);
    const auto vocab = static_cast<size_t>(config_of(c.pack).vocab);
    for (size_t prompt = 0; prompt < found.size(); ++prompt) {
      SCOPED_TRACE(pack_->prompts[prompt].name);
      if (c.same_bits()) {
        EXPECT_TRUE(same_bits(found[prompt], expected[prompt]));
        continue;
      }
      EXPECT_LE(max_abs_difference(found[prompt], expected[prompt]), pack_->fp32_logits_max_abs);
      for (size_t step = 0; step <= kDecodeSteps; ++step) {
        EXPECT_EQ(argmax(std::span(found[prompt]).subspan(step * vocab, vocab)),
                  pack_->prompts[prompt].greedy[step])
            << "greedy token " << step;
      }
    }
  }

  std::optional<GoldenPack> pack_;
  std::map<Compute, PromptLogits> alone_;
};
INSTANTIATE_TEST_SUITE_P(Packs, RanksSweep, ::testing::Range(size_t{0}, kPacks.size()),
                         [](const auto& info) {
                           std::string name = kPacks[info.param];
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(RanksSweep, RanksComputeWhatOneProcessComputes) {
  const std::vector<RankCase> cases = cases_of(GetParam());
  ASSERT_FALSE(cases.empty());
  for (const RankCase& c : cases) {
    SCOPED_TRACE(c.name());
    check(c);
    if (HasFailure()) return;
  }
  RecordProperty("cases", static_cast<int>(cases.size()));
}

TEST(RanksSweepSize, IsTwoThousandCasesOrMore) { EXPECT_GE(all_cases().size(), 2000u); }

// On every rank, before it reads a weight.
TEST(RanksSweepRefusals, OfWhatCannotBeCutNameTheSizesThatWork) {
  const std::map<std::string, std::string> four_is_refused = {
      {"gptoss-bf16-h160",
       "6 attention heads over 2 KV heads cannot be cut into 4 equal parts; sizes "
       "that work for this model: 1, 2, 6"},
      {"nemotron-nvfp4-h112", "6 Mamba2 heads in 2 groups cannot be cut into 4"},
      {"nemotron-fp8-h144", "6 Mamba2 heads in 2 groups cannot be cut into 4"},
      {"nemotron-latent-bf16-h112", "6 Mamba2 heads in 2 groups cannot be cut into 4"},
      {"nemotron-latent-mixed-h112", "6 Mamba2 heads in 2 groups cannot be cut into 4"}};
  for (size_t pack = 0; pack < kPacks.size(); ++pack) {
    SCOPED_TRACE(kPacks[pack]);
    EXPECT_TRUE(check_tensor_parallel(config_of(pack), 2).ok());
    const auto refused = four_is_refused.find(kPacks[pack]);
    EXPECT_EQ(check_tensor_parallel(config_of(pack), 4).ok(), refused == four_is_refused.end());
    if (refused == four_is_refused.end()) continue;
    LoopbackRanks ranks(4);
    ranks.run([&](Communicator& world) {
      HarnessOptions options = options_of({pack, Compute::kFloat32, MoeParallel{}, 0});
      options.ranks = {.world = &world,
                       .tensor = &world,
                       .parallel = {.shape = {.tp = 4, .rank = world.rank()}}};
      const Status status = status_of(Harness::load(small_pack_dir(kPacks[pack]), options));
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find(refused->second), std::string::npos) << status.message();
      EXPECT_NE(status.message().find("sizes that work for this model: 1, 2"), std::string::npos);
    });
  }
}

}  // namespace
}  // namespace rota::golden
