#include "engine/memory_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rota {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kPage = 1000000;

KvSpec spec_of(std::vector<int64_t> windows) {
  KvSpec spec;
  for (const int64_t window : windows) spec.groups.push_back({.window = window, .layers = {0}});
  spec.page_bytes = Bytes{kPage};
  return spec;
}

MemoryProfile profile_of(const KvSpec& spec) {
  MemoryProfile profile;
  profile.spec = &spec;
  profile.available_bytes = 1000 * kPage;
  profile.weight_bytes = 500 * kPage;
  profile.workspace_bytes = 100 * kPage;
  profile.max_num_seqs = 64;
  profile.model_max_len = 4096;
  profile.max_chunk_tokens = 512;
  return profile;
}

// As another rank tells it: the rest follows.
KvBudget planned_of(int64_t pages, int64_t sequences, int64_t snapshots, int64_t max_model_len) {
  KvBudget budget;
  budget.pages = pages;
  budget.max_num_seqs = sequences;
  budget.snapshots = snapshots;
  budget.max_model_len = max_model_len;
  return budget;
}

TEST(KvBudget, IsWhatWeightsAndWorkspaceLeave) {
  const KvSpec spec = spec_of({0});
  const KvBudget budget = plan_kv_budget(profile_of(spec)).value();
  EXPECT_EQ(budget.pages, 300);  // 0.9 * 1000 - 500 - 100
  EXPECT_EQ(budget.bytes, 300 * kPage);
  EXPECT_EQ(budget.max_model_len, 4096);
  EXPECT_EQ(budget.max_sequence_tokens, 300 * 64);
  EXPECT_EQ(budget.tokens, 300 * 64);
  EXPECT_TRUE(budget.note.empty());
}

TEST(KvBudget, RanksOfAHostDivideWhatIsLeft) {
  const KvSpec spec = spec_of({0});
  MemoryProfile profile = profile_of(spec);
  profile.ranks_of_host = 3;
  EXPECT_EQ(plan_kv_budget(profile).value().pages, 100);  // of 300
  profile.ranks_of_host = 7;
  profile.wanted_max_len = 4096;
  EXPECT_THAT(plan_kv_budget(profile).status().message(),
              HasSubstr("divided among the 7 ranks of this host"));
  profile.kv_cache_memory_bytes = 80 * kPage;  // of each rank
  EXPECT_EQ(plan_kv_budget(profile).value().pages, 80);
}

TEST(KvBudget, CachesOfAllRanksStandBesideTheCopies) {
  const KvSpec spec = spec_of({0});
  MemoryProfile profile = profile_of(spec);
  profile.copied_bytes = 700 * kPage;
  profile.copied_because = "--moe-hidden-alignment 256";
  profile.kv_cache_memory_bytes = 90 * kPage;
  profile.ranks_of_host = 2;  // 700 + 100 + 2 * 90 <= 1000
  EXPECT_TRUE(plan_kv_budget(profile).ok());
  profile.ranks_of_host = 3;
  EXPECT_EQ(plan_kv_budget(profile).status().code(), StatusCode::kResourceExhausted);
}

TEST(KvBudget, RanksUseTheLeastThatOneOfThemPlanned) {
  const KvSpec spec = spec_of({0});
  const std::vector<KvBudget> planned = {planned_of(100, 8, 0, 6400), planned_of(90, 9, 0, 4096)};
  const KvBudget least = least_budget(spec, planned);
  EXPECT_EQ(least.pages, 90);
  EXPECT_EQ(least.max_num_seqs, 8);
  EXPECT_EQ(least.max_model_len, 4096);
  EXPECT_EQ(least.bytes, 90 * kPage);
  EXPECT_EQ(least.max_sequence_tokens, 90 * 64);
  EXPECT_EQ(least.slots, 0);
}

TEST(KvBudget, SlotsAreOfTheLeastSequencesAndSnapshots) {
  KvSpec spec = spec_of({0});
  spec.state.layers = {0};
  spec.state.layer_bytes = Bytes{10};
  const std::vector<KvBudget> planned = {planned_of(5, 4, 6, 320), planned_of(5, 8, 2, 320)};
  const KvBudget least = least_budget(spec, planned);
  EXPECT_EQ(least.slots, 4 + 2);
  EXPECT_EQ(least.bytes, 5 * kPage + 6 * 10);
}

TEST(KvBudget, ModelLengthIsLoweredToWhatFits) {
  const KvSpec spec = spec_of({0});
  MemoryProfile profile = profile_of(spec);
  profile.model_max_len = 131072;
  const KvBudget budget = plan_kv_budget(profile).value();
  EXPECT_EQ(budget.max_model_len, 300 * 64);
  EXPECT_THAT(budget.note, HasSubstr("lowered from 131072 to 19200"));
}

TEST(KvBudget, AnExplicitLengthThatDoesNotFitIsAnErrorWithAWayOut) {
  const KvSpec spec = spec_of({0});
  MemoryProfile profile = profile_of(spec);
  profile.wanted_max_len = 20000;
  const Status status = plan_kv_budget(profile).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("--max-model-len 19200 or less"));
}

TEST(KvBudget, NoRoomAtAllIsAnError) {
  const KvSpec spec = spec_of({0});
  MemoryProfile profile = profile_of(spec);
  profile.weights_can_be_paged = false;
  profile.weight_bytes = 2000 * kPage;
  EXPECT_FALSE(plan_kv_budget(profile).ok());
}

TEST(KvBudget, ACacheTooSmallForAnythingSaysWhatOneSequenceTakes) {
  const KvSpec spec = spec_of({0, 0});
  MemoryProfile profile = profile_of(spec);
  profile.kv_cache_memory_bytes = 1000;
  const std::string message = plan_kv_budget(profile).status().message();
  EXPECT_THAT(message, HasSubstr("--kv-cache-memory-bytes 1000"));
  EXPECT_THAT(message, HasSubstr("of 64 tokens, takes 2000000 bytes"));
  EXPECT_THAT(message, HasSubstr("4096 tokens: that takes 128000000 bytes"));
  EXPECT_THAT(message, Not(HasSubstr("or less")));
}

// Copies cannot be paged, so beside them no warning is enough.
TEST(KvBudget, CopiesThatDoNotFitAreAnErrorThatNamesTheFlag) {
  const KvSpec spec = spec_of({0});
  MemoryProfile profile = profile_of(spec);
  profile.copied_bytes = 850 * kPage;
  profile.copied_because = "--moe-hidden-alignment 256";
  const Status status = plan_kv_budget(profile).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("padded copies of the experts take 850.00 MB"));
  EXPECT_THAT(status.message(), HasSubstr("--moe-hidden-alignment 256"));
  profile.copied_bytes = 100 * kPage;
  EXPECT_TRUE(plan_kv_budget(profile).ok());
  profile.kv_cache_memory_bytes = 900 * kPage;  // an explicit cache does not fit beside them either
  EXPECT_FALSE(plan_kv_budget(profile).ok());
}

TEST(KvBudget, MappedWeightsBeyondTheMemoryLeaveAShareAndAWarning) {
  const KvSpec spec = spec_of({0});
  MemoryProfile profile = profile_of(spec);
  profile.weight_bytes = 2000 * kPage;
  const KvBudget budget = plan_kv_budget(profile).value();
  EXPECT_EQ(budget.pages, 90);
  EXPECT_THAT(budget.note, HasSubstr("wait for the disk"));
}

TEST(KvBudget, ExplicitBytesWin) {
  const KvSpec spec = spec_of({0});
  MemoryProfile profile = profile_of(spec);
  profile.kv_cache_memory_bytes = 70 * kPage + 5;
  EXPECT_EQ(plan_kv_budget(profile)->pages, 70);
}

TEST(KvBudget, NoMoreThanAllSequencesCanUse) {
  const KvSpec spec = spec_of({0});
  MemoryProfile profile = profile_of(spec);
  profile.max_num_seqs = 2;
  profile.model_max_len = 1024;
  EXPECT_EQ(plan_kv_budget(profile)->pages, 2 * 16 + 9);
}

// A slot of ten pages.
KvSpec hybrid_spec() {
  KvSpec spec = spec_of({0});
  spec.state = {.layers = {0, 2}, .layer_bytes = Bytes{5 * kPage}};
  return spec;
}

MemoryProfile hybrid_profile(const KvSpec& spec, int64_t pages) {
  MemoryProfile profile = profile_of(spec);
  profile.kv_cache_memory_bytes = pages * kPage;
  profile.max_num_seqs = 8;
  profile.model_max_len = 131072;
  profile.snapshot_interval = 1024;
  return profile;
}

TEST(StateBudget, SlotsForTheRunningSequencesAnEighthForSnapshotsTheRestForPages) {
  const KvSpec spec = hybrid_spec();
  const KvBudget budget = plan_kv_budget(hybrid_profile(spec, 800)).value();
  EXPECT_EQ(budget.max_num_seqs, 8);
  EXPECT_EQ(budget.snapshots, 10);  // 800 / 8 / 10
  EXPECT_EQ(budget.slots, 18);
  EXPECT_EQ(budget.pages, 800 - 180);
  EXPECT_EQ(budget.bytes, 800 * kPage);
  EXPECT_THAT(
      describe_states(spec, budget),
      HasSubstr("10000000 bytes a sequence in 2 recurrent layers: 80.00 MB for 8 sequences, "
                "100.00 MB for 10 snapshots"));
}

TEST(StateBudget, ExplicitSnapshotBytesWinAndNoPrefixCacheNeedsNone) {
  const KvSpec spec = hybrid_spec();
  MemoryProfile profile = hybrid_profile(spec, 800);
  profile.snapshot_bytes = 45 * kPage;
  EXPECT_EQ(plan_kv_budget(profile)->snapshots, 4);
  EXPECT_EQ(plan_kv_budget(profile)->pages, 800 - 120);
  profile.snapshot_bytes = 0;
  EXPECT_EQ(plan_kv_budget(profile)->slots, 8);
  profile.snapshot_bytes = -1;
  profile.prefix_caching = false;
  EXPECT_EQ(plan_kv_budget(profile)->slots, 8);
}

TEST(StateBudget, ExplicitSnapshotBytesBeyondTheCacheAreCutWithANote) {
  const KvSpec spec = hybrid_spec();
  MemoryProfile profile = hybrid_profile(spec, 800);
  profile.wanted_max_len = 64 * 600;
  profile.snapshot_bytes = 500 * kPage;
  const KvBudget budget = plan_kv_budget(profile).value();
  EXPECT_THAT(budget.note, HasSubstr("there is room for 12 snapshots of 50"));
  EXPECT_EQ(budget.snapshots, 12);  // 800 - 600 - 8 * 10
  EXPECT_EQ(budget.pages, 600);
}

TEST(StateBudget, RunningSequencesAreLoweredToWhatFits) {
  const KvSpec spec = hybrid_spec();
  const KvBudget budget = plan_kv_budget(hybrid_profile(spec, 71)).value();
  EXPECT_EQ(budget.max_num_seqs, 4);  // one, and half of the 60 pages that it leaves at least
  EXPECT_EQ(budget.snapshots, 0);
  EXPECT_EQ(budget.pages, 31);
  EXPECT_THAT(budget.note, HasSubstr("max_num_seqs lowered from 8 to 4"));
}

TEST(StateBudget, AStateThatDoesNotFitBesideItsPagesIsAnError) {
  const KvSpec spec = hybrid_spec();
  EXPECT_TRUE(plan_kv_budget(hybrid_profile(spec, 11)).ok());
  const Status status = plan_kv_budget(hybrid_profile(spec, 10)).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("of 64 tokens, takes 11000000 bytes"));
}

TEST(StateBudget, NoMoreSnapshotsThanAllSequencesCanTake) {
  const KvSpec spec = hybrid_spec();
  MemoryProfile profile = hybrid_profile(spec, 8000);
  profile.model_max_len = 4096;
  EXPECT_EQ(plan_kv_budget(profile)->snapshots, 8 * (4 + 1));
  profile.snapshot_interval = 0;
  EXPECT_EQ(plan_kv_budget(profile)->snapshots, 8);
}

TEST(StateBudget, AModelCutToRecurrentLayersHasNoPagesToSpeakOf) {
  KvSpec spec = hybrid_spec();
  spec.groups.clear();
  spec.page_bytes = Bytes{0};
  const KvBudget budget = plan_kv_budget(hybrid_profile(spec, 800)).value();
  EXPECT_EQ(budget.pages, 1);
  EXPECT_EQ(budget.max_num_seqs, 8);
  EXPECT_EQ(budget.max_model_len, 131072);
  EXPECT_GE(budget.max_sequence_tokens, budget.max_model_len);
}

TEST(StateBudget, WithoutStatesThereIsNoSlot) {
  const KvSpec spec = spec_of({0});
  const KvBudget budget = plan_kv_budget(profile_of(spec)).value();
  EXPECT_EQ(budget.slots, 0);
  EXPECT_EQ(budget.max_num_seqs, 64);
}

TEST(KvBudget, WindowsDoNotGrow) {
  const KvSpec spec = spec_of({0, 128});
  EXPECT_EQ(pages_for_sequence(spec, 64), 2);
  EXPECT_EQ(pages_for_sequence(spec, 65), 4);
  EXPECT_EQ(pages_for_sequence(spec, 6400), 100 + 3);
  EXPECT_EQ(longest_sequence(spec, 103), 6400);
  EXPECT_EQ(longest_sequence(spec, 1), 0);
  for (int64_t pages = 0; pages < 50; ++pages) {
    const int64_t longest = longest_sequence(spec, pages);
    EXPECT_LE(pages_for_sequence(spec, longest), pages);
    EXPECT_GT(pages_for_sequence(spec, longest + 1), pages);
  }
}

}  // namespace
}  // namespace rota
