#include "engine/rank_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/plan_warnings.h"
#include "engine/testing/planned_model.h"

namespace rota {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::PlannedModel;

std::vector<int64_t> experts_of(const std::vector<RankPlan>& ranks) {
  std::vector<int64_t> out;
  for (const RankPlan& rank : ranks) out.push_back(rank.experts);
  return out;
}

std::vector<int64_t> shards_of(const std::vector<RankPlan>& ranks) {
  std::vector<int64_t> out;
  for (const RankPlan& rank : ranks) out.push_back(rank.intermediate.end - rank.intermediate.begin);
  return out;
}

const PlanWarning* find(const std::vector<PlanWarning>& warnings, std::string_view kind) {
  for (const PlanWarning& one : warnings) {
    if (one.kind == kind) return &one;
  }
  return nullptr;
}

bool warned(PlannedModel& model, std::string_view kind) {
  const auto warnings = model.warnings();
  return find(warnings, kind) != nullptr;
}

TEST(RankPlan, OneRankHoldsEveryByteOfTheModel) {
  PlannedModel model;
  const std::vector<RankPlan> ranks = model.ranks();
  ASSERT_EQ(ranks.size(), 1u);
  EXPECT_EQ(ranks[0].bytes(), model.census.bytes);
  EXPECT_EQ(ranks[0].expert_bytes, model.census[ModelPart::kExperts].bytes);
  EXPECT_EQ(ranks[0].copied_bytes, 0);
  EXPECT_EQ(ranks[0].padding_bytes, 0);
  EXPECT_THAT(plan_warnings(model.inputs(), ranks), IsEmpty());
}

// A whole is the sum of its shards: every kind of cut, over many numbers of ranks.
TEST(RankPlan, RanksTogetherHoldEachExpertHeadAndRowOnce) {
  PlannedModel model;
  const int64_t experts_bytes = model.census[ModelPart::kExperts].bytes;
  for (const bool expert_parallel : {true, false}) {
    for (const int dp : {1, 2, 8}) {
      for (const int tp : {1, 2, 3, 4, 8, 16}) {
        SCOPED_TRACE(::testing::Message()
                     << "dp " << dp << " tp " << tp << " ep " << expert_parallel);
        model.parallel = {.tensor_parallel_size = tp,
                          .data_parallel_size = dp,
                          .enable_expert_parallel = expert_parallel};
        int64_t experts = 0, rows = 0, heads = 0, expert_bytes = 0, embedding = 0;
        const std::vector<RankPlan> ranks = model.ranks();
        ASSERT_EQ(ranks.size(), static_cast<size_t>(dp * tp));
        for (const RankPlan& rank : ranks) {
          experts += rank.experts;
          rows += rank.intermediate.end - rank.intermediate.begin;
          heads += rank.query_heads;
          expert_bytes += rank.expert_bytes;
          embedding += rank.embedding_bytes;
        }
        const auto count = static_cast<int64_t>(ranks.size());
        EXPECT_EQ(rows, expert_parallel ? 2880 * count : 2880);
        EXPECT_EQ(heads, 64 * dp);
        EXPECT_EQ(embedding, count * model.census[ModelPart::kEmbedding].bytes +
                                 dp * model.census[ModelPart::kLmHead].bytes);
        int64_t holders = 0;
        for (const RankPlan& rank : ranks) holders += rank.holds_experts() ? 1 : 0;
        EXPECT_EQ(experts, expert_parallel ? 128 : 128 * holders);
        // The bias of down too: the first shard alone adds it.
        EXPECT_EQ(expert_bytes, experts_bytes);
      }
    }
  }
}

TEST(RankPlan, ExpertsThatDoNotDivideAreDealtToTheFirst) {
  PlannedModel model;
  model.parallel = {.data_parallel_size = 5, .enable_expert_parallel = true};
  for (const char* placement : {"linear", "round_robin"}) {
    model.parallel.expert_placement_strategy = placement;
    EXPECT_THAT(experts_of(model.ranks()), ElementsAre(26, 26, 26, 25, 25));
  }
  const auto warnings = model.warnings();
  const PlanWarning* uneven = find(warnings, "uneven_experts");
  ASSERT_NE(uneven, nullptr);
  EXPECT_THAT(uneven->what, HasSubstr("the first 3 hold 26, the others 25"));
  EXPECT_THAT(uneven->advice, HasSubstr("4 ranks would hold 32 each"));
}

// Each slot beyond one for each expert is an expert more that some rank holds.
TEST(RankPlan, RedundantExpertsAreCounted) {
  PlannedModel model;
  model.options.moe.hidden_alignment = 256;  // so that experts are copied
  model.parallel = {.data_parallel_size = 8, .enable_expert_parallel = true};
  const RankPlan plain = model.ranks().front();
  model.parallel.enable_eplb = true;
  model.parallel.num_redundant_experts = 18;
  const std::vector<RankPlan> ranks = model.ranks();
  EXPECT_THAT(experts_of(ranks), ElementsAre(19, 19, 18, 18, 18, 18, 18, 18));
  EXPECT_GT(plain.copied_bytes, 0);
  EXPECT_EQ(ranks[0].copied_bytes, plain.copied_bytes / plain.experts * 19);
  const auto warnings = model.warnings();
  const PlanWarning* uneven = find(warnings, "uneven_experts");
  ASSERT_NE(uneven, nullptr);
  EXPECT_THAT(uneven->what, HasSubstr("146 experts, 18 of them redundant, over 8 ranks"));
}

TEST(RankPlan, AnEmptyRankIsNamedWithWhatToDo) {
  PlannedModel model;
  model.parallel.tensor_parallel_size = 16;
  const std::vector<RankPlan> ranks = model.ranks();
  EXPECT_EQ(ranks[14].intermediate.begin, 2688);
  EXPECT_FALSE(ranks[15].holds_experts());
  EXPECT_EQ(ranks[15].expert_bytes, 0);
  auto warnings = model.warnings();
  const PlanWarning* empty = find(warnings, "empty_rank");
  ASSERT_NE(empty, nullptr);
  EXPECT_THAT(empty->ranks, ElementsAre(15));
  EXPECT_THAT(empty->what, HasSubstr("rank 15 of 16 holds no experts"));
  EXPECT_THAT(empty->advice, HasSubstr("15 ranks do the same work"));

  model.parallel = {.data_parallel_size = 130, .enable_expert_parallel = true};
  warnings = model.warnings();
  empty = find(warnings, "empty_rank");
  ASSERT_NE(empty, nullptr);
  EXPECT_THAT(empty->ranks, ElementsAre(128, 129));
  EXPECT_THAT(empty->what, HasSubstr("ranks 128-129 of 130 hold no experts"));
}

// vLLM #43865: rows of later ranks came from the padded stride. Here: whole blocks of logical
// sizes.
TEST(RankPlan, ACutThroughABlockIsMovedAndSaid) {
  PlannedModel model;
  model.parallel.tensor_parallel_size = 8;
  model.options.moe.intermediate_alignment = 256;
  EXPECT_THAT(shards_of(model.ranks()), ElementsAre(384, 384, 384, 384, 384, 384, 384, 192));
  const std::vector<RankPlan> ranks = model.ranks();
  EXPECT_EQ(ranks[7].intermediate.begin, 2688);
  EXPECT_EQ(ranks[0].intermediate_padded(), 512);
  EXPECT_EQ(ranks[7].intermediate_padded(), 256);
  const auto warnings = model.warnings();
  const PlanWarning* cut = find(warnings, "cut_block");
  ASSERT_NE(cut, nullptr);
  EXPECT_THAT(cut->what, HasSubstr("2880 / 8 = 360 would cut a quantisation block of 32"));
  EXPECT_THAT(cut->what, HasSubstr("384 a rank and less on 7"));
  EXPECT_THAT(cut->advice, HasSubstr("6 ranks divide its 90 blocks"));
  EXPECT_THAT(cut->ranks, ElementsAre(7));
  model.parallel.tensor_parallel_size = 2;
  EXPECT_FALSE(warned(model, "cut_block"));
}

// vLLM #56359: padding cost a third more memory and nobody was told.
TEST(RankPlan, PaddedWeightsAreCountedAndTheirFlagNamed) {
  PlannedModel model;
  model.options.moe.hidden_alignment = 256;
  const std::vector<RankPlan> ranks = model.ranks();
  // gate_up [5760, 3072] and down [3072, 2880], MXFP4: 17 bytes for 32; biases of 2 bytes a row.
  const int64_t padded = 5760 * (3072 / 32 * 17 + 2) + 3072 * (2880 / 32 * 17 + 2);
  const int64_t plain = 5760 * (2880 / 32 * 17 + 2) + 2880 * (2880 / 32 * 17 + 2);
  EXPECT_EQ(ranks[0].copied_bytes, padded * 128 * 36);
  EXPECT_EQ(ranks[0].padding_bytes, (padded - plain) * 128 * 36);
  const auto warnings = model.warnings();
  const PlanWarning* rounded = find(warnings, "rounded_weights");
  ASSERT_NE(rounded, nullptr);
  EXPECT_THAT(rounded->what, HasSubstr("hidden 2880 -> 3072: 6.2 % of the experts' memory"));
  EXPECT_THAT(rounded->advice, HasSubstr("leave --moe-hidden-alignment out"));
  EXPECT_THAT(rounded->advice, HasSubstr("multiples of 32"));
}

TEST(RankPlan, RowsThatATransportRoundsAreSaid) {
  PlannedModel model;
  model.parallel = {.data_parallel_size = 8,
                    .enable_expert_parallel = true,
                    .all2all_backend = "deepep_low_latency"};
  const auto warnings = model.warnings();
  const PlanWarning* rows = find(warnings, "rounded_rows");
  ASSERT_NE(rows, nullptr);
  EXPECT_THAT(rows->what, HasSubstr("rows of 3072 elements for 2880"));
  EXPECT_THAT(rows->advice, Not(HasSubstr("alltoallv")));  // it would send 3072 too
  model.parallel.all2all_backend = "naive";
  EXPECT_FALSE(warned(model, "rounded_rows"));
}

TEST(RankPlan, KvHeadsAreKeptByEveryRankWhoseQueriesAskThem) {
  PlannedModel model;
  model.parallel.tensor_parallel_size = 16;
  for (const RankPlan& rank : model.ranks()) {
    EXPECT_EQ(rank.query_heads, 4);
    EXPECT_EQ(rank.kv_heads, 1);
  }
  EXPECT_TRUE(warned(model, "repeated_kv_heads"));
  model.parallel.tensor_parallel_size = 3;
  const std::vector<RankPlan> three = model.ranks();
  EXPECT_EQ(three[0].query_heads, 24);  // whole groups of 8 with their KV head
  EXPECT_EQ(three[0].kv_heads, 3);
  EXPECT_EQ(three[2].kv_heads, 2);
  EXPECT_TRUE(warned(model, "uneven_heads"));
}

TEST(RankPlan, AFlagThatDoesNothingIsAWarning) {
  PlannedModel model;
  model.parallel.all2all_backend = "pplx";
  const auto warnings = model.warnings();
  ASSERT_NE(find(warnings, "unused_flag"), nullptr);
  EXPECT_THAT(find(warnings, "unused_flag")->what, HasSubstr("--all2all-backend pplx"));
}

TEST(RankPlan, RanksAreListedInRuns) {
  EXPECT_EQ(list_ranks(std::vector<int>{0, 1, 2, 5, 7, 8}), "0-2, 5, 7-8");
  EXPECT_EQ(list_ranks(std::vector<int>{}), "");
}

}  // namespace
}  // namespace rota
