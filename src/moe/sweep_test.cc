// Every width: layer kinds x shapes x alignments of hidden and intermediate x tensor-parallel
// shards and expert-parallel ranks, each rank loaded by MoeLayer::load() from one file, all of them
// threads of one process. The ranks' Partial outputs add up to what the unpadded layer computes
// alone: exactly, in ref with integers; within rounding, in the vector backends with BF16 inputs.
// What every rank holds whole (shared experts, the ways into and out of the latent width) enters
// once on each of them.
//
// Without ROTA_FULL a seeded sample runs. Rows of input and output are followed by NaN that must
// neither be read nor written; ROTA_POISON builds also fill every buffer and check guard bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "comm/loopback.h"
#include "kernels/testing/harness.h"
#include "moe/runner.h"
#include "moe/testing/moe_case.h"
#include "moe/testing/synthetic_layer.h"

namespace rota {
namespace {

using testing::LayerKind;
using testing::SyntheticLayer;
using testing::SyntheticShape;
using testing::Values;

constexpr int64_t kTokens = 3;
constexpr int64_t kTail = 16;  // NaN that follow each row of input and output
constexpr size_t kSample = 300;

struct Parallel {
  int tp = 1;
  int ep = 1;
  ExpertPlacement placement = ExpertPlacement::kLinear;
};

struct SweepCase {
  int kind = 0;  // index into kLayerKinds
  SyntheticShape shape;
  int64_t hidden_alignment = 0;
  int64_t intermediate_alignment = 0;
  Parallel parallel;

  const LayerKind& kind_of() const { return testing::kLayerKinds[static_cast<size_t>(kind)]; }
  std::string name() const {
    return fmt::format("{} {} x {}, {}, hidden alignment {}, intermediate {}, tp {}, ep {} {}",
                       kind_of().name, shape.hidden, shape.intermediate,
                       shape.values == Values::kIntegers ? "ref integers" : "vector random",
                       hidden_alignment, intermediate_alignment, parallel.tp, parallel.ep,
                       parallel.placement == ExpertPlacement::kLinear ? "linear" : "round_robin");
  }
};

// Shards of every expert, owners of whole experts, and a few of both at once.
std::vector<Parallel> parallels() {
  std::vector<Parallel> all;
  for (const int tp : {1, 2, 3, 4, 8, 16}) all.push_back({.tp = tp});
  for (const int ep : {2, 3, 5, 8, 17}) {
    all.push_back({.ep = ep});
    all.push_back({.ep = ep, .placement = ExpertPlacement::kRoundRobin});
  }
  all.push_back({.tp = 2, .ep = 3});
  all.push_back({.tp = 3, .ep = 8, .placement = ExpertPlacement::kRoundRobin});
  return all;
}

// The 2880, 2688 and 1856 of the models, in small: no power of two fits them. MXFP4 and NVFP4 in
// whole blocks: 1, 3 or 11 of them for up to 16 shards. Blocks of factors: the last one is cut.
std::vector<SyntheticShape> shapes(const LayerKind& kind) {
  if (kind.block_in > 0) return {{336, 200}, {160, 320}};
  switch (kind.format) {
    case WeightFormat::kMxfp4:
      return {{160, 352}, {288, 96}, {96, 32}};
    case WeightFormat::kNvfp4:
      return {{80, 176}, {336, 48}, {160, 16}};
    case WeightFormat::kBf16:
    case WeightFormat::kFloat32:
    case WeightFormat::kFp8:
      return {{72, 176}, {336, 44}, {160, 88}};
  }
  return {};
}

std::vector<SweepCase> all_cases() {
  std::vector<SweepCase> cases;
  for (size_t kind = 0; kind < testing::kLayerKinds.size(); ++kind) {
    for (SyntheticShape shape : shapes(testing::kLayerKinds[kind])) {
      for (const Values values : {Values::kIntegers, Values::kRandom}) {
        shape.values = values;
        // 256 elements are 512 bytes of BF16; 2048 is where the low-latency list of widths begins.
        for (const int64_t hidden : {0, 128, 256, 2048}) {
          for (const int64_t intermediate : {0, 64, 128, 256}) {
            for (const Parallel& parallel : parallels()) {
              cases.push_back({static_cast<int>(kind), shape, hidden, intermediate, parallel});
            }
          }
        }
      }
    }
  }
  return cases;
}

// In the order of all_cases(), so that neighbours share a layer.
std::vector<SweepCase> cases_of(int kind) {
  std::vector<SweepCase> all = all_cases();
  std::vector<size_t> chosen(all.size());
  for (size_t i = 0; i < chosen.size(); ++i) chosen[i] = i;
  if (!testing::full_run()) {
    std::shuffle(chosen.begin(), chosen.end(), std::mt19937(20240613));
    chosen.resize(kSample);
    std::sort(chosen.begin(), chosen.end());
  }
  std::vector<SweepCase> mine;
  for (const size_t i : chosen) {
    if (all[i].kind == kind) mine.push_back(all[i]);
  }
  return mine;
}

// Rows [T, width] with NaN after each.
class TailedRows {
 public:
  explicit TailedRows(int64_t width)
      : width_(width), data_(static_cast<size_t>(kTokens * (width + kTail)), NAN) {}
  MatrixView<float> view() { return {data_.data(), kTokens, Extent(width_), width_ + kTail}; }
  bool tails_are_whole() const {
    for (int64_t i = 0; i < kTokens * (width_ + kTail); ++i) {
      const bool tail = i % (width_ + kTail) >= width_;
      if (tail && !std::isnan(data_[static_cast<size_t>(i)])) return false;
    }
    return true;
  }
  std::vector<float> logical() {
    std::vector<float> out;
    for (int64_t t = 0; t < kTokens; ++t) {
      const std::span<float> row = view().row(t);
      out.insert(out.end(), row.begin(), row.end());
    }
    return out;
  }

 private:
  int64_t width_;
  std::vector<float> data_;
};

// A layer of one kind and shape, the input that it gets, and what it computes alone and unpadded.
class Subject {
 public:
  Subject(int kind, const SyntheticShape& shape)
      : layer_(testing::kLayerKinds[static_cast<size_t>(kind)], shape),
        integers_(shape.values == Values::kIntegers),
        input_(shape.hidden) {
    std::mt19937 random(7);
    std::uniform_int_distribution<int> integer(-2, 2);
    std::normal_distribution<float> normal;
    for (int64_t t = 0; t < kTokens; ++t) {
      for (float& x : input_.view().row(t)) {
        x = integers_ ? static_cast<float>(integer(random)) : normal(random);
      }
    }
    whole_ = run({.kind = kind, .shape = shape, .parallel = {}});
    const auto zeros = std::count(whole_.begin(), whole_.end(), 0.0f);
    EXPECT_LT(zeros, static_cast<int64_t>(whole_.size()) / 4) << "too little to compare";
  }

  void expect_sum_of_ranks(const SweepCase& c) {
    const std::vector<float> sum = run(c);
    if (integers_) {
      EXPECT_EQ(sum, whole_);
    } else {
      // A latent sum is rounded to BF16 on its way out: another order may round it the other way.
      EXPECT_LT(testing::relative_rms(sum, whole_), c.kind_of().latent ? 2e-3 : 1e-5);
    }
  }

 private:
  const KernelTable& kernels() const {
    static const std::vector<const KernelTable*> all = available_kernels(detect_cpu());
    return integers_ ? *all.front() : *all.back();
  }
  Compute compute() const { return integers_ ? Compute::kFloat32 : Compute::kBf16; }

  // Each rank has a shard of its experts: more than plan_moe() would plan.
  MoePlan plan_of(const SweepCase& c, int rank) const {
    const int shard = rank / c.parallel.ep, owner = rank % c.parallel.ep;
    const BackendContext context{.cpu = detect_cpu(), .isa = kernels().isa, .compute = compute()};
    auto plan = plan_moe(layer_.config(), {.backend = integers_ ? "ref" : "auto"}, context,
                         {.shape = {.tp = c.parallel.tp * c.parallel.ep, .rank = rank}});
    ROTA_CHECK(plan.ok(), plan.status().message());
    auto widths = plan_widths({.moe = layer_.config(),
                               .experts = plan->choice.backend,
                               .parallel = {.tp = c.parallel.tp, .rank = shard},
                               .hidden_alignment = c.hidden_alignment,
                               .intermediate_alignment = c.intermediate_alignment});
    ROTA_CHECK(widths.ok(), widths.status().message());
    // Shared experts are cut over all ranks, which add them up.
    widths->shared_inside = plan->widths.shared_inside;
    plan->widths = *widths;
    plan->map =
        *ExpertMap::make(SyntheticLayer::kExperts, c.parallel.ep, owner, c.parallel.placement);
    return std::move(plan).value();
  }

  // What each rank ends up with.
  std::vector<float> run(const SweepCase& c) {
    LoopbackRanks ranks(c.parallel.tp * c.parallel.ep, {.check_collectives = true});
    std::vector<std::vector<float>> outputs(static_cast<size_t>(c.parallel.tp * c.parallel.ep));
    ranks.run([&](Communicator& rank) {
      outputs[static_cast<size_t>(rank.rank())] = output_of(plan_of(c, rank.rank()), rank);
    });
    for (const std::vector<float>& output : outputs) EXPECT_EQ(output, outputs.front());
    return outputs.front();
  }

  std::vector<float> output_of(const MoePlan& plan, Communicator& ranks) {
    auto layer = MoeLayer::load(
        layer_.checkpoint(), layer_.names(),
        {.config = &plan.config, .plan = &plan.widths, .map = plan.map, .compute = compute()});
    ROTA_CHECK(layer.ok(), layer.status().message());
    ThreadTeam team({.threads = 1, .pin = false});
    auto runner = MoeRunner::make(plan, kernels(), team, kTokens, kMoeWorkspace, {ranks, ranks});
    ROTA_CHECK(runner.ok(), runner.status().message());
    TailedRows out(plan.config.hidden);
    const Status status = runner->run(*layer, input_.view(), out.view());
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(out.tails_are_whole());
    return out.logical();
  }

  SyntheticLayer layer_;
  bool integers_;
  TailedRows input_;
  std::vector<float> whole_;
};

class Sweep : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Sweep,
                         ::testing::Range(0, static_cast<int>(testing::kLayerKinds.size())),
                         [](const auto& info) {
                           return testing::kLayerKinds[static_cast<size_t>(info.param)].name;
                         });

TEST_P(Sweep, TheRanksAddUpToTheUnpaddedLayer) {
  std::unique_ptr<Subject> subject;
  SyntheticShape loaded;
  const std::vector<SweepCase> cases = cases_of(GetParam());
  ASSERT_FALSE(cases.empty());
  for (const SweepCase& c : cases) {
    SCOPED_TRACE(c.name());
    if (subject == nullptr || !(c.shape == loaded)) {
      subject = std::make_unique<Subject>(c.kind, c.shape);
      loaded = c.shape;
    }
    subject->expect_sum_of_ranks(c);
    if (HasFailure()) return;
  }
}

TEST(SweepSize, IsThreeThousandCasesOrMore) { EXPECT_GE(all_cases().size(), 3000u); }

}  // namespace
}  // namespace rota
