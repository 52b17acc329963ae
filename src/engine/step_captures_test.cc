#include "engine/step_captures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/testing/ranked_engine.h"

namespace rota {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

EngineOptions options_of(const std::string& sizes, int64_t sequences = 12, int64_t tokens = 512) {
  EngineOptions options;
  options.max_num_seqs = sequences;
  options.max_num_batched_tokens = tokens;
  options.cudagraph_capture_sizes = sizes;
  return options;
}

TEST(CaptureSizes, DefaultsDoubleUpToTheLargestBatch) {
  EXPECT_THAT(*capture_sizes(options_of("")), ElementsAre(1, 2, 4, 8, 12));
  EXPECT_THAT(*capture_sizes(options_of("", 8)), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(*capture_sizes(options_of("", 1)), ElementsAre(1));
  EXPECT_THAT(*capture_sizes(options_of("", 64, 3)), ElementsAre(1, 2, 3));
}

TEST(CaptureSizes, ListsAreSortedAndEachSizeIsThereOnce) {
  EXPECT_THAT(*capture_sizes(options_of("8,1,3,8")), ElementsAre(1, 3, 8));
}

TEST(CaptureSizes, WhatIsNoSizeIsNamed) {
  for (const char* bad : {"0", "13", "1,,2", "1,x", "-1", "2,", " 1"}) {
    const auto sizes = capture_sizes(options_of(bad));
    ASSERT_FALSE(sizes.ok()) << bad;
    EXPECT_THAT(sizes.status().message(), HasSubstr("from 1 to 12")) << bad;
  }
}

TEST(CaptureSizes, EagerHasNone) {
  EngineOptions options = options_of("");
  options.enforce_eager = true;
  EXPECT_THAT(*capture_sizes(options), IsEmpty());
  options.cudagraph_capture_sizes = "1";
  EXPECT_THAT(capture_sizes(options).status().message(), HasSubstr("leave one of them out"));
}

TEST(StepCaptures, TheSmallestThatHoldsAllGroupsIsReplayed) {
  StepCaptures captures({2, 4});
  captures.add(4, 40);
  captures.add(2, 20);
  captures.add(2, 99);  // what the cache cut down to a size that is there
  const auto found = [&](std::vector<int64_t> tokens, bool decodes) -> int64_t {
    const StepCapture* it = captures.find({.tokens_of_group = tokens, .decodes = decodes});
    return it == nullptr ? 0 : it->operations;
  };
  EXPECT_EQ(found({1}, true), 20);
  EXPECT_EQ(found({0, 2}, true), 20);
  EXPECT_EQ(found({3, 0, 1}, true), 40);
  EXPECT_EQ(found({1, 5}, true), 0);
  EXPECT_EQ(found({1, 1}, false), 0);
}

TEST(StepCaptures, AReplayThatMeetsTheRanksMoreOftenIsAnError) {
  EXPECT_TRUE(check_replay({.size = 4, .operations = 40}, 40).ok());
  EXPECT_TRUE(check_replay({.size = 4, .operations = 40}, 38).ok());
  const Status status = check_replay({.size = 4, .operations = 40}, 41);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("41 times"));
}

std::vector<EngineRequest> some_requests() {
  std::vector<EngineRequest> requests;
  for (int32_t i = 0; i < 5; ++i) {
    requests.push_back(testing::request_of({1, 2, 3, i}, 6 + i, i % 2 == 0 ? 0.0 : 0.8));
    requests.back().id = fmt::format("request-{}", i);
    requests.back().sampling.seed = i;
  }
  return requests;
}

EngineStats end_stats(EngineClient& engine, int64_t steps_at_least) {
  for (int wait = 0; wait < 1000; ++wait) {
    if (engine.stats().running == 0 && engine.stats().steps >= steps_at_least) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return engine.stats();
}

TEST(CapturedSteps, OverRanksAnswersAreThoseOfEagerStepsAndReplaysAreCounted) {
  for (const char* transport : {"allgather_reducescatter", "alltoallv", "low_latency"}) {
    SCOPED_TRACE(transport);
    EngineOptions options = testing::ranked_options(
        "gptoss-mxfp4-h288",
        {.data_parallel_size = 2, .enable_expert_parallel = true, .all2all_backend = transport});
    testing::RankedEngine captured(options);
    options.enforce_eager = true;
    testing::RankedEngine eager(options);
    ASSERT_TRUE(captured.started() && eager.started());
    const auto expected = testing::answers_of(eager.front(), some_requests());
    const auto answers = testing::answers_of(captured.front(), some_requests());
    for (size_t i = 0; i < answers.size(); ++i) EXPECT_EQ(answers[i].tokens, expected[i].tokens);

    const EngineStats replayed = end_stats(captured.front(), 5);
    EXPECT_EQ(replayed.captured_steps, 4);  // 1, 2, 4, 8
    EXPECT_GT(replayed.replayed_steps, 5);
    EXPECT_GT(replayed.eager_steps, 0);  // the prompts
    EXPECT_EQ(replayed.replayed_steps + replayed.eager_steps, replayed.steps);
    EXPECT_EQ(end_stats(eager.front(), 5).replayed_steps, 0);
  }
}

TEST(CapturedSteps, ASizeThatTheCacheCannotHoldIsCapturedAsFarAsItGoes) {
  const auto loaded = testing::small_engine("gptoss-mxfp4-h160", {.pages = 6, .max_model_len = 64});
  const auto core = EngineCore::make(*loaded).value();
  EXPECT_GE(core->stats().captured_steps, 1);
  EXPECT_LT(core->stats().captured_steps, 4);
  EXPECT_FALSE(core->has_work());
  EXPECT_EQ(core->kv_pages_used(), 0);
  EXPECT_EQ(core->stats().steps, 0);
}

}  // namespace
}  // namespace rota
