// A mixture over ranks: layer kinds x ways over ranks x hidden alignments, ranks as threads with
// every collective checked, each with tokens of its own, some with none. Where all experts are
// whole the rows are those of one process without padding, bit for bit, in ref with float32, in the
// vector backends with BF16, and with 8-bit inputs; where they are cut, within rounding. What
// travels is what transfer_size.h says.
//
// Without ROTA_FULL a seeded sample runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/testing/harness.h"
#include "moe/testing/moe_case.h"
#include "moe/testing/rank_layers.h"

namespace rota {
namespace {

using testing::RankLayers;
using testing::RankLayersOptions;
using testing::RankOutput;
using testing::StepRows;
using testing::SyntheticLayer;
using testing::Values;

constexpr size_t kSample = 160;

// How a backend computes: all that changes the bits of one process.
struct Arithmetic {
  const char* name;
  bool vector;
  Compute compute;
  const char* mxfp4;  // backends
  const char* nvfp4;
  const char* others;
};
constexpr std::array kArithmetics = {
    Arithmetic{"ref float32", false, Compute::kFloat32, "ref", "ref", "ref"},
    Arithmetic{"vector BF16", true, Compute::kBf16, "auto", "auto", "auto"},
    Arithmetic{"vector int8", true, Compute::kBf16, "cpu_mxfp4_int8", "cpu_nvfp4_int8", "auto"},
};
constexpr size_t kInt8 = 2;

struct Way {
  Transport transport = Transport::kNoDpEp;
  ParallelShape shape = {};
  ExpertPlacement placement = ExpertPlacement::kLinear;
};

std::vector<Way> ways() {
  constexpr std::array kBoth = {ExpertPlacement::kLinear, ExpertPlacement::kRoundRobin};
  constexpr std::array<std::pair<int, int>, 7> kSizes = {
      {{2, 1}, {3, 1}, {5, 1}, {8, 1}, {2, 2}, {3, 2}, {2, 3}}};
  std::vector<Way> all = {Way{}};
  for (const auto& [dp, tp] : kSizes) {
    for (const Transport transport :
         {Transport::kAllgatherReducescatter, Transport::kAlltoallv, Transport::kLowLatency}) {
      for (const ExpertPlacement placement : kBoth) {
        all.push_back({transport, {.dp = dp, .tp = tp, .expert_parallel = true}, placement});
      }
    }
    all.push_back({Transport::kAllgatherReducescatter, {.dp = dp, .tp = tp}});
  }
  for (const int tp : {2, 5}) {
    all.push_back({Transport::kNoDpEp, {.tp = tp}});
    all.push_back({Transport::kNoDpEp, {.tp = tp, .expert_parallel = true}});
  }
  return all;
}

struct RankCase {
  size_t kind = 0;  // index into kLayerKinds
  size_t arithmetic = 0;
  Way way;
  int64_t hidden_alignment = 0;
  size_t number = 0;

  const testing::LayerKind& kind_of() const { return testing::kLayerKinds[kind]; }
  std::string name() const {
    return fmt::format("{}, {}, {} dp {} tp {} {} {}, hidden alignment {}", kind_of().name,
                       kArithmetics[arithmetic].name, to_string(way.transport), way.shape.dp,
                       way.shape.tp, way.shape.expert_parallel ? "ep" : "cut",
                       to_string(way.placement), hidden_alignment);
  }
  // One token a pass, or all.
  Bytes max_workspace() const { return number % 3 == 0 ? Bytes{1} : kMoeWorkspace; }
  // Sums over ranks in another order than one process has.
  bool same_bits() const {
    const bool shared_cut = kind_of().shared && way.shape.tp > 1;
    return way.shape.ranks() == 1 || (way.shape.expert_parallel && way.shape.dp > 1 && !shared_cut);
  }
  // Else: a shard's 8-bit blocks are not those of the whole row; a latent sum is rounded to BF16 on
  // its way out, and another order may round it the other way.
  double tolerance() const {
    if (arithmetic == kInt8) return 2e-2;
    return kind_of().latent ? 2e-3 : 1e-5;
  }
};

std::vector<RankCase> all_cases() {
  std::vector<RankCase> cases;
  for (size_t kind = 0; kind < testing::kLayerKinds.size(); ++kind) {
    for (size_t arithmetic = 0; arithmetic < kArithmetics.size(); ++arithmetic) {
      const WeightFormat format = testing::kLayerKinds[kind].format;
      const bool e2m1 = format == WeightFormat::kMxfp4 || format == WeightFormat::kNvfp4;
      if (arithmetic == kInt8 && !e2m1) continue;
      for (const Way& way : ways()) {
        for (const int64_t alignment : {0, 256, 2048}) {
          cases.push_back({kind, arithmetic, way, alignment, cases.size()});
        }
      }
    }
  }
  return cases;
}

std::vector<RankCase> cases_of(size_t kind) {
  std::vector<RankCase> all = all_cases();
  if (!testing::full_run()) {
    std::shuffle(all.begin(), all.end(), std::mt19937(20250117));
    all.resize(kSample);
  }
  std::erase_if(all, [&](const RankCase& c) { return c.kind != kind; });
  return all;
}

testing::SyntheticShape shape_of(const testing::LayerKind& kind) {
  if (kind.block_in > 0) return {160, 320, Values::kRandom};
  switch (kind.format) {
    case WeightFormat::kMxfp4:
      return {160, 96, Values::kRandom};
    case WeightFormat::kNvfp4:
      return {144, 48, Values::kRandom};
    case WeightFormat::kBf16:
    case WeightFormat::kFloat32:
    case WeightFormat::kFp8:
      break;
  }
  return {72, 44, Values::kRandom};
}

RankLayersOptions options_of(const RankCase& c) {
  const Arithmetic& arithmetic = kArithmetics[c.arithmetic];
  const auto kernels = available_kernels(detect_cpu());
  const WeightFormat format = c.kind_of().format;
  const bool alone = kernels.size() == 1;  // nothing but ref: it has no 8-bit inputs
  return {.shape = c.way.shape,
          .transport = c.way.transport,
          .placement = c.way.placement,
          .kernels = arithmetic.vector ? kernels.back() : kernels.front(),
          .compute = arithmetic.compute,
          .moe = {.backend = alone                            ? "auto"
                             : format == WeightFormat::kMxfp4 ? arithmetic.mxfp4
                             : format == WeightFormat::kNvfp4 ? arithmetic.nvfp4
                                                              : arithmetic.others,
                  .hidden_alignment = c.hidden_alignment,
                  .intermediate_alignment = 0},
          .max_tokens = 32,
          .max_workspace = c.max_workspace()};
}

// Uneven, and for many ranks some without any.
StepRows rows_for(int dp, int64_t hidden, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int64_t> tokens(0, 4);
  StepRows step;
  for (int rank = 0; rank < dp; ++rank) {
    const int64_t count = rank == 0 ? 5 : std::max<int64_t>(0, tokens(random) - 1);
    step.push_back(testing::random_rows(count, hidden, static_cast<uint32_t>(random())));
  }
  return step;
}

std::vector<float> joined(const StepRows& step) {
  std::vector<float> all;
  for (const auto& rows : step) all.insert(all.end(), rows.begin(), rows.end());
  return all;
}

// Of one process, without padding, all at once.
std::vector<float> alone(const SyntheticLayer& layer, RankLayersOptions options,
                         const StepRows& step) {
  options.shape = {};
  options.transport = Transport::kNoDpEp;
  options.moe.hidden_alignment = 0;
  options.max_tokens = 256;
  options.max_workspace = kMoeWorkspace;
  const std::vector<StepRows> steps(1, StepRows{joined(step)});
  return RankLayers(layer, options).run(steps).front().rows;
}

::testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " != " << b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(a[i] == b[i]) || std::memcmp(&a[i], &b[i], sizeof(float)) != 0) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " != " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

// What data-parallel ranks made, in order; tensor-parallel ranks must have made the same.
std::vector<float> rows_of_groups(const std::vector<RankOutput>& outputs, int tp) {
  std::vector<float> rows;
  for (size_t rank = 0; rank < outputs.size(); ++rank) {
    const RankOutput& first = outputs[rank / static_cast<size_t>(tp) * static_cast<size_t>(tp)];
    EXPECT_TRUE(same_bits(outputs[rank].rows, first.rows)) << "rank " << rank << " of its group";
    if (&outputs[rank] == &first) rows.insert(rows.end(), first.rows.begin(), first.rows.end());
  }
  return rows;
}

void expect_traffic(const std::vector<RankOutput>& outputs, const Way& way) {
  for (size_t rank = 0; rank < outputs.size(); ++rank) {
    const RankOutput& out = outputs[rank];
    EXPECT_EQ(out.traffic.bytes, out.predicted.count) << "rank " << rank;
    // Two epochs a pass and, in a group, its gathering, and the group's sums: so nothing else was
    // exchanged.
    if (way.transport == Transport::kLowLatency) {
      EXPECT_EQ(out.traffic.operations, out.passes * (way.shape.tp > 1 ? 3 : 2) + out.shared_sums);
    }
  }
}

class MixtureRanks : public ::testing::TestWithParam<size_t> {
 protected:
  void check(const SyntheticLayer& layer, const RankCase& c) {
    const RankLayersOptions options = options_of(c);
    const StepRows step =
        rows_for(c.way.shape.dp, layer.config().hidden, static_cast<uint32_t>(c.number));
    const std::vector<float> expected = alone(layer, options, step);
    const std::vector<RankOutput> outputs = RankLayers(layer, options).run({step});
    const std::vector<float> found = rows_of_groups(outputs, c.way.shape.tp);
    if (c.same_bits()) {
      EXPECT_TRUE(same_bits(found, expected));
    } else {
      EXPECT_LT(testing::relative_rms(found, expected), c.tolerance());
    }
    if (c.max_workspace() < kMoeWorkspace) {
      EXPECT_GE(outputs.front().passes, 5 / c.way.shape.tp);
    }
    expect_traffic(outputs, c.way);
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, MixtureRanks,
                         ::testing::Range(size_t{0}, testing::kLayerKinds.size()),
                         [](const auto& info) { return testing::kLayerKinds[info.param].name; });

TEST_P(MixtureRanks, TheirRowsAreThoseOfOneProcess) {
  const testing::LayerKind& kind = testing::kLayerKinds[GetParam()];
  const SyntheticLayer layer(kind, shape_of(kind));
  const std::vector<RankCase> cases = cases_of(GetParam());
  ASSERT_FALSE(cases.empty());
  for (const RankCase& c : cases) {
    SCOPED_TRACE(c.name());
    check(layer, c);
    if (HasFailure()) return;
  }
}

// mixtral's kind: experts e and e + 3 of six are chosen together.
class OneKind : public ::testing::TestWithParam<Transport> {
 protected:
  static constexpr size_t kMixtral = 2;
  OneKind() : layer_(testing::kLayerKinds[kMixtral], shape_of(testing::kLayerKinds[kMixtral])) {}

  RankCase of(int dp, ExpertPlacement placement) const {
    return {kMixtral,
            1,
            {GetParam(), {.dp = dp, .tp = 1, .expert_parallel = true, .rank = 0}, placement},
            256,
            1};
  }
  int64_t hidden() const { return layer_.config().hidden; }

  SyntheticLayer layer_;
};
INSTANTIATE_TEST_SUITE_P(Transports, OneKind,
                         ::testing::Values(Transport::kAllgatherReducescatter,
                                           Transport::kAlltoallv, Transport::kLowLatency),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST_P(OneKind, AllTokensMayGoToOneRank) {
  const RankCase c = of(3, ExpertPlacement::kRoundRobin);
  const std::vector<float> row = testing::random_rows(1, hidden(), 5);
  StepRows step(3);
  for (int i = 0; i < 7; ++i) step[0].insert(step[0].end(), row.begin(), row.end());
  for (int i = 0; i < 4; ++i) step[2].insert(step[2].end(), row.begin(), row.end());
  const auto outputs = RankLayers(layer_, options_of(c)).run({step});
  EXPECT_EQ(outputs[0].ids[0] % 3, outputs[0].ids[1] % 3) << "both experts on one rank";
  EXPECT_TRUE(same_bits(rows_of_groups(outputs, 1), alone(layer_, options_of(c), step)));
  expect_traffic(outputs, c.way);
}

TEST_P(OneKind, StepsOfAllShapesFollowOneAnother) {
  const RankCase c = of(4, ExpertPlacement::kLinear);
  std::mt19937 random(3);
  std::vector<StepRows> steps;
  std::vector<std::vector<float>> expected(4);
  for (int i = 0; i < 25; ++i) {
    StepRows step(4);
    for (int rank = 0; rank < 3; ++rank) {  // the last rank never has work
      const int64_t tokens = std::max<int64_t>(0, static_cast<int64_t>(random() % 40) - 10);
      step[static_cast<size_t>(rank)] =
          testing::random_rows(tokens, hidden(), static_cast<uint32_t>(random()));
    }
    if (i % 10 == 9) step.assign(4, {});  // nobody has
    const std::vector<float> all = alone(layer_, options_of(c), step);
    auto next = all.begin();
    for (size_t rank = 0; rank < 4; ++rank) {
      const auto end = next + std::ssize(step[rank]);
      expected[rank].insert(expected[rank].end(), next, end);
      next = end;
    }
    steps.push_back(std::move(step));
  }
  const auto outputs = RankLayers(layer_, options_of(c)).run(steps);
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(same_bits(outputs[rank].rows, expected[rank])) << "rank " << rank;
  }
  expect_traffic(outputs, c.way);
}

TEST_P(OneKind, MemoryIsCountedBeforehand) {
  const RankLayersOptions options = options_of(of(4, ExpertPlacement::kLinear));
  RankLayers(layer_, options).each([&](RankLayers::Rank& rank) {
    ThreadTeam team({.threads = 1, .pin = false});
    const auto counted = MoeRunner::count_workspace(rank.plan(), *options.kernels, team,
                                                    options.max_tokens, options.max_workspace);
    ASSERT_TRUE(counted.ok());
    EXPECT_EQ(*counted, rank.runner().workspace_bytes());
  });
}

}  // namespace
}  // namespace rota
