#include "moe/balance_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/testing/harness.h"

namespace rota {
namespace {

struct Case {
  int64_t experts = 0;
  int ranks = 0;
  int64_t redundant = 0;
  ExpertPlacement placement = ExpertPlacement::kLinear;

  ExpertMap map() const { return *ExpertMap::make(experts + redundant, ranks, 0, placement); }
  ExpertSlots first() const { return *ExpertSlots::first(map(), experts); }
};

// Tokens so that rank 0's experts, where they lie at first, have twice what ranks have on average;
// each expert's own share of that varies.
std::vector<int64_t> twice_on_rank_0(const Case& c, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> varied(0.5, 1.5);
  const ExpertMap map = c.map();
  const ExpertSlots slots = c.first();
  std::vector<double> tokens(static_cast<size_t>(c.experts));
  for (double& it : tokens) it = varied(random);
  double hot = 0, all = 0;
  std::vector<bool> is_hot(tokens.size());
  for (int64_t slot = 0; slot < c.experts; ++slot) {
    const auto e = static_cast<size_t>(slots.expert(slot));
    is_hot[e] = map.owner(slot) == 0;
    all += tokens[e];
    if (is_hot[e]) hot += tokens[e];
  }
  const double share = 2.0 / c.ranks;  // of all tokens, on rank 0
  std::vector<int64_t> out;
  for (size_t e = 0; e < tokens.size(); ++e) {
    const double part = is_hot[e] ? share / hot : (1 - share) / (all - hot);
    out.push_back(std::llround(1e6 * part * tokens[e]));
  }
  return out;
}

void expect_legal(const Case& c, const ExpertSlots& slots) {
  const auto checked = ExpertSlots::make(
      c.map(), c.experts, {slots.expert_of_slot().begin(), slots.expert_of_slot().end()});
  EXPECT_TRUE(checked.ok()) << checked.status().message();
}

TEST(BalanceExperts, TwiceTheMeanOnOneRankBecomesEven) {
  for (const Case& c :
       {Case{32, 4, 4}, Case{32, 4, 0}, Case{128, 8, 16}, Case{128, 8, 3}, Case{60, 7, 5},
        Case{256, 32, 32}, Case{64, 4, 8, ExpertPlacement::kRoundRobin}, Case{128, 64, 64}}) {
    for (uint32_t seed = 0; seed < 5; ++seed) {
      SCOPED_TRACE(fmt::format("{} experts, {} ranks, {} redundant, seed {}", c.experts, c.ranks,
                               c.redundant, seed));
      const std::vector<int64_t> tokens = twice_on_rank_0(c, seed);
      const ExpertSlots before = c.first();
      if (c.redundant == 0) {
        EXPECT_NEAR(load_imbalance(c.map(), before, tokens), 2, 0.01);
      }
      const ExpertSlots after = balance_experts(c.map(), before, tokens);
      expect_legal(c, after);
      EXPECT_LE(load_imbalance(c.map(), after, tokens), 1.2);
      EXPECT_GT(after.differences(before), 0);
    }
  }
}

// One expert that everybody wants: as many copies as its load asks for.
TEST(BalanceExperts, ThePopularHaveCopies) {
  const Case c{8, 4, 4};
  const ExpertSlots slots =
      balance_experts(c.map(), c.first(), std::vector<int64_t>{700, 50, 50, 50, 50, 50, 50, 0});
  expect_legal(c, slots);
  EXPECT_EQ(slots.slots_of(0).size(), 4u) << "on every rank";
  EXPECT_LE(load_imbalance(c.map(), slots, std::vector<int64_t>{700, 50, 50, 50, 50, 50, 50, 0}),
            1.2);
}

TEST(BalanceExperts, WhatIsEvenStays) {
  const Case c{32, 4, 4};
  const std::vector<int64_t> skewed = twice_on_rank_0(c, 1);
  const ExpertSlots once = balance_experts(c.map(), c.first(), skewed);
  EXPECT_TRUE(balance_experts(c.map(), once, skewed) == once);
  const Case plain{32, 4, 0};
  const std::vector<int64_t> even(32, 100);
  EXPECT_TRUE(balance_experts(plain.map(), plain.first(), even) == plain.first());
}

// A small change of loads moves few: it begins with what is there.
TEST(BalanceExperts, FewMoveWhenLoadsChangeALittle) {
  const Case c{128, 8, 0};
  std::vector<int64_t> tokens = twice_on_rank_0(c, 2);
  const ExpertSlots once = balance_experts(c.map(), c.first(), tokens);
  tokens[5] = tokens[5] * 3;
  const ExpertSlots twice = balance_experts(c.map(), once, tokens);
  EXPECT_LE(load_imbalance(c.map(), twice, tokens), 1.05);
  EXPECT_LE(twice.differences(once), 16);
}

TEST(BalanceExperts, NothingToDoIsNoReason) {
  const Case c{12, 3, 3};
  const std::vector<int64_t> none(12, 0);
  expect_legal(c, balance_experts(c.map(), c.first(), none));
  EXPECT_EQ(load_imbalance(c.map(), c.first(), none), 1);
}

// Whatever the shapes and loads: every expert somewhere, none twice on a rank, never worse than
// before.
TEST(BalanceExperts, AnyShapeIsLegal) {
  std::mt19937 random(7);
  const int rounds = testing::full_run() ? 20000 : 600;
  for (int round = 0; round < rounds; ++round) {
    const auto pick = [&](int64_t least, int64_t most) {
      return std::uniform_int_distribution<int64_t>(least, most)(random);
    };
    Case c{pick(1, 40), static_cast<int>(pick(1, 12)), 0};
    c.redundant = pick(0, c.experts * (c.ranks - 1));
    if (pick(0, 1) == 1) c.placement = ExpertPlacement::kRoundRobin;
    const double steepness = static_cast<double>(pick(0, 20)) / 10;
    ExpertSlots slots = c.first();
    expect_legal(c, slots);
    for (int step = 0; step < 3; ++step) {
      std::vector<int64_t> tokens;
      for (int64_t e = 0; e < c.experts; ++e) {
        tokens.push_back(
            std::llround(1000 / std::pow(static_cast<double>(pick(1, c.experts)), steepness)) *
            pick(0, 3));
      }
      const ExpertSlots next = balance_experts(c.map(), slots, tokens);
      expect_legal(c, next);
      EXPECT_TRUE(next == balance_experts(c.map(), slots, tokens)) << "the same twice";
      slots = next;
    }
    if (HasFailure()) {
      FAIL() << c.experts << " experts, " << c.ranks << " ranks, " << c.redundant << " redundant";
    }
  }
}

TEST(ExpertSlots, BeginWithEachExpertThenCopies) {
  const Case c{6, 3, 3};
  const ExpertSlots slots = c.first();
  EXPECT_EQ(std::vector<int32_t>(slots.expert_of_slot().begin(), slots.expert_of_slot().end()),
            (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 0, 1, 2}));
  EXPECT_EQ(std::vector<int32_t>(slots.slots_of(1).begin(), slots.slots_of(1).end()),
            (std::vector<int32_t>{1, 7}));
  EXPECT_EQ(slots.differences(*ExpertSlots::make(c.map(), 6, {0, 1, 2, 3, 4, 5, 1, 0, 2})), 2);
}

TEST(ExpertSlots, RefusesWhatIsNone) {
  const Case c{4, 2, 2};
  const auto message = [&](const std::vector<int32_t>& experts) {
    return ExpertSlots::make(c.map(), 4, experts).status().message();
  };
  EXPECT_EQ(message({0, 1, 2, 3}), "expert slots: 4 experts for 6 slots");
  EXPECT_EQ(message({0, 1, 2, 2, 1, 0}), "expert slots: expert 3 lies in none");
  EXPECT_EQ(message({0, 1, 0, 2, 3, 1}), "expert slots: expert 0 lies twice on rank 0");
  EXPECT_EQ(message({0, 1, 2, 3, 4, 1}), "expert slots: expert 4 is none of 4");
  const auto many = ExpertSlots::first(*ExpertMap::make(9, 2, 0, ExpertPlacement::kLinear), 4);
  EXPECT_EQ(
      many.status().message(),
      "5 redundant experts: 4 experts on 2 ranks can have from 0 to 4, a copy of each on every "
      "rank");
}

}  // namespace
}  // namespace rota
