#include "engine/rank_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "engine/testing/damaged_model.h"
#include "engine/testing/ranked_engine.h"
#include "platform/clock.h"

namespace rota {
namespace {

using ::testing::AllOf;
using testing::answers_of;
using testing::Collected;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::ranked_options;
using testing::RankedEngine;

ParallelOptions experts_dealt(int dp, const std::string& transport = "", int tp = 1) {
  return {.tensor_parallel_size = tp,
          .data_parallel_size = dp,
          .enable_expert_parallel = true,
          .all2all_backend = transport};
}

std::vector<int32_t> random_prompt(std::mt19937& random, int64_t tokens) {
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  for (int32_t& token : prompt) token = static_cast<int32_t>(random() % 500);
  return prompt;
}

// Greedy and sampled, with seeds and without, long and short, some with logprobs of the prompt.
std::vector<EngineRequest> mixed_requests(int count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<EngineRequest> requests;
  for (int i = 0; i < count; ++i) {
    EngineRequest& request = requests.emplace_back();
    request.id = fmt::format("r{}", i);
    request.prompt = random_prompt(random, 1 + static_cast<int64_t>(random() % 90));
    SamplingParams& sampling = request.sampling;
    sampling.max_tokens = static_cast<int64_t>(1 + random() % 9);
    sampling.temperature = i % 2 == 0 ? 0 : 1;
    if (i % 4 == 1) sampling.seed = 77 + i;
    sampling.logprobs = 2;
    if (i % 5 == 0) sampling.prompt_logprobs = 1;
    sampling.ignore_eos = true;
  }
  return requests;
}

std::vector<Collected> one_process(const std::string& model,
                                   const std::vector<EngineRequest>& requests,
                                   const testing::SmallEngineOptions& small = {}) {
  const auto engine = InProcessEngine::start(testing::small_options(model, small)).value();
  return answers_of(*engine, requests);
}

int groups_that_worked(const EngineStats& stats) {
  return static_cast<int>(std::count_if(stats.ranks.begin(), stats.ranks.end(),
                                        [](const RankStats& rank) { return rank.steps > 0; }));
}

// Until the ranks' last figures have come.
EngineStats settled_stats(const InProcessEngine& engine) {
  const Clock::time_point start = Clock::now();
  EngineStats stats = engine.stats();
  const auto counted = [&] {
    return std::accumulate(stats.ranks.begin(), stats.ranks.end(), int64_t{0},
                           [](int64_t sum, const RankStats& it) { return sum + it.running; });
  };
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    stats = engine.stats();
  } while ((stats.running > 0 || counted() > 0) && seconds_since(start) < 30);
  return stats;
}

struct Case {
  std::string model;
  ParallelOptions parallel;
};

class RanksAgree : public ::testing::TestWithParam<Case> {};

// The same bits as one process, whichever rank served a request.
TEST_P(RanksAgree, WithOneProcess) {
  const auto& [model, parallel] = GetParam();
  const std::vector<EngineRequest> requests = mixed_requests(14, 5);
  const std::vector<Collected> expected = one_process(model, requests);
  RankedEngine ranks(ranked_options(model, parallel));
  ASSERT_TRUE(ranks.started()) << ranks.status(0).message();
  const std::vector<Collected> answers = answers_of(ranks.front(), requests);
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_TRUE(answers[i].status.ok()) << answers[i].status.message();
    expect_same(answers[i], expected[i], "request " + std::to_string(i));
  }
  const EngineStats stats = settled_stats(ranks.front());
  const int dp = parallel.data_parallel_size;
  EXPECT_EQ(groups_that_worked(stats), dp * parallel.tensor_parallel_size);
  EXPECT_EQ(stats.ranks.size(), static_cast<size_t>(dp * parallel.tensor_parallel_size));
  int64_t tokens = 0;
  for (const Collected& answer : answers) tokens += static_cast<int64_t>(answer.tokens.size());
  EXPECT_EQ(stats.generation_tokens, tokens);
  for (const RankStats& rank : stats.ranks) {
    EXPECT_GT(rank.operations, 0);
    EXPECT_GT(rank.payload_bytes, 0);
    EXPECT_GT(rank.header_seconds, 0);
    EXPECT_GT(rank.communication_seconds, 0);
    EXPECT_LT(rank.communication_seconds, rank.step_seconds);
  }
  ranks.end();
  for (int rank = 0; rank < dp; ++rank) EXPECT_TRUE(ranks.status(rank).ok());
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, RanksAgree,
    ::testing::Values(Case{"gptoss-mxfp4-h160", experts_dealt(2, "allgather_reducescatter")},
                      Case{"gptoss-mxfp4-h160", experts_dealt(3, "alltoallv")},
                      Case{"gptoss-mxfp4-h160", experts_dealt(5, "low_latency")},
                      Case{"gptoss-bf16-h160", experts_dealt(3, "low_latency")},
                      Case{"mixtral-bf16-h72", experts_dealt(2, "alltoallv")},
                      Case{"nemotron-bf16-h336", experts_dealt(2, "low_latency")},
                      Case{"nemotron-bf16-h336", experts_dealt(3, "allgather_reducescatter")}),
    [](const auto& it) {
      std::string name = it.param.model + "_dp" +
                         std::to_string(it.param.parallel.data_parallel_size) + "_" +
                         it.param.parallel.all2all_backend;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

// Experts change hands again and again while requests run: no answer changes a bit.
class ExpertsMove : public ::testing::TestWithParam<Case> {};

TEST_P(ExpertsMove, AndAnswersStay) {
  auto [model, parallel] = GetParam();
  parallel.enable_eplb = true;
  parallel.eplb_window_size = 3;
  parallel.eplb_step_interval = 4;
  const std::vector<EngineRequest> requests = mixed_requests(14, 5);
  const std::vector<Collected> expected = one_process(model, requests);
  RankedEngine ranks(ranked_options(model, parallel));
  ASSERT_TRUE(ranks.started()) << ranks.status(0).message();
  const std::vector<Collected> answers = answers_of(ranks.front(), requests);
  for (size_t i = 0; i < answers.size(); ++i) {
    expect_same(answers[i], expected[i], "request " + std::to_string(i));
  }
  const EngineStats stats = settled_stats(ranks.front());
  EXPECT_GT(stats.balance.looks, 0);
  EXPECT_GT(stats.balance.moves, 0);
  EXPECT_GE(stats.balance.imbalance, 1);
  // Where they lie now: in every layer each expert somewhere.
  ASSERT_EQ(stats.balance.held.size(), stats.expert_tokens.size());
  for (const std::vector<std::vector<int32_t>>& ranks_of_layer : stats.balance.held) {
    ASSERT_EQ(std::ssize(ranks_of_layer), parallel.data_parallel_size);
    std::set<int32_t> held;
    for (const std::vector<int32_t>& mine : ranks_of_layer) held.insert(mine.begin(), mine.end());
    EXPECT_EQ(held.size(), stats.expert_tokens.front().size());
  }
  // Whoever computed it: each token's experts once.
  std::vector<int64_t> by_expert;
  for (const std::vector<int64_t>& layer : stats.expert_tokens) {
    by_expert.resize(layer.size());
    std::ranges::transform(by_expert, layer, by_expert.begin(), std::plus<>());
  }
  std::vector<int64_t> by_rank(by_expert.size());
  for (const RankStats& rank : stats.ranks) {
    ASSERT_EQ(rank.expert_tokens.size(), by_rank.size());
    std::ranges::transform(by_rank, rank.expert_tokens, by_rank.begin(), std::plus<>());
  }
  EXPECT_EQ(by_rank, by_expert);
  ranks.end();
  for (int rank = 0; rank < parallel.data_parallel_size; ++rank) {
    EXPECT_TRUE(ranks.status(rank).ok()) << ranks.status(rank).message();
  }
}

ParallelOptions with_redundant(ParallelOptions parallel, int64_t redundant) {
  parallel.num_redundant_experts = redundant;
  return parallel;
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, ExpertsMove,
    ::testing::Values(Case{"gptoss-mxfp4-h160",
                           with_redundant(experts_dealt(4, "allgather_reducescatter"), 4)},
                      Case{"gptoss-mxfp4-h160", with_redundant(experts_dealt(3, "low_latency"), 0)},
                      Case{"nemotron-bf16-h336", with_redundant(experts_dealt(2, "alltoallv"), 3)}),
    [](const auto& it) { return it.param.parallel.all2all_backend; });

TEST(RankLoop, MoreCopiesThanRanksIsRefused) {
  for (const int64_t copies : {int64_t{1000}, std::numeric_limits<int64_t>::max()}) {
    ParallelOptions parallel = with_redundant(experts_dealt(2), copies);
    parallel.enable_eplb = true;
    RankedEngine ranks(ranked_options("gptoss-mxfp4-h160", parallel));
    EXPECT_THAT(ranks.status(0).message(),
                AllOf(HasSubstr(fmt::format("--num-redundant-experts: {} is more than", copies)),
                      HasSubstr("on every one of 2 ranks")));
  }
}

// A group's ranks replicate the scheduler. Sums over heads are taken in another order: greedy
// tokens agree.
TEST(TensorParallelRanks, GiveTheGreedyTokensOfOneProcess) {
  std::vector<EngineRequest> requests = mixed_requests(8, 6);
  for (EngineRequest& request : requests) request.sampling.temperature = 0;
  const std::vector<Collected> expected = one_process("mixtral-bf16-h72", requests);
  RankedEngine ranks(ranked_options("mixtral-bf16-h72", experts_dealt(2, "alltoallv", 2)));
  ASSERT_TRUE(ranks.started()) << ranks.status(0).message();
  const std::vector<Collected> answers = answers_of(ranks.front(), requests);
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].tokens, expected[i].tokens) << "request " << i;
  }
  EXPECT_EQ(groups_that_worked(settled_stats(ranks.front())), 4);
}

// Pages run out and requests are preempted: every group for itself.
TEST(RankLoop, PreemptionsChangeNothing) {
  std::vector<EngineRequest> requests = mixed_requests(12, 8);
  std::mt19937 random(8);
  for (EngineRequest& request : requests) {  // of one page each, and two before they end
    request.prompt = random_prompt(random, 20 + static_cast<int64_t>(random() % 40));
    request.sampling.max_tokens = 60;
  }
  const std::vector<Collected> expected = one_process("mixtral-bf16-h72", requests);
  testing::SmallEngineOptions small;
  small.max_model_len = 128;
  EngineOptions options = ranked_options("mixtral-bf16-h72", experts_dealt(2), small);
  options.kv_cache_memory_bytes = 5 * 76800;  // pages
  RankedEngine ranks(options);
  ASSERT_TRUE(ranks.started()) << ranks.status(0).message();
  const std::vector<Collected> answers = answers_of(ranks.front(), requests);
  for (size_t i = 0; i < answers.size(); ++i) {
    expect_same(answers[i], expected[i], "request " + std::to_string(i));
  }
  EXPECT_GT(settled_stats(ranks.front()).preemptions, 0);
}

// Random arrivals, lengths and cancellations on 1x4: no hang, every answer right.
TEST(RankLoop, ManyRequestsThatComeAndGo) {
  const bool full = std::getenv("ROTA_FULL") != nullptr;
  const std::string model = "gptoss-mxfp4-h160";
  std::vector<EngineRequest> requests = mixed_requests(full ? 300 : 60, 9);
  for (EngineRequest& request : requests) request.sampling.seed = 3;
  testing::SmallEngineOptions small;
  const std::vector<Collected> expected = [&] {
    EngineOptions options = testing::small_options(model, small);
    options.max_waiting = 400;
    return answers_of(*InProcessEngine::start(options).value(), requests);
  }();
  EngineOptions options = ranked_options(model, experts_dealt(4, "alltoallv"), small);
  options.max_waiting = 400;
  RankedEngine ranks(options);
  ASSERT_TRUE(ranks.started()) << ranks.status(0).message();
  std::mt19937 random(10);
  std::vector<Collected> heard(requests.size());
  std::set<size_t> cancelled;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Status status = ranks.front().submit(
        requests[i], [&heard, i](const RequestOutput& output) { heard[i].add(output); });
    ASSERT_TRUE(status.ok()) << status.message();
    if (random() % 3 == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
    }
    const size_t victim = i - std::min<size_t>(i, random() % 6);
    if (random() % 4 != 0) continue;
    ranks.front().cancel(requests[victim].id);
    cancelled.insert(victim);
  }
  ASSERT_TRUE(ranks.front().drain(300));
  EXPECT_FALSE(cancelled.empty());
  for (size_t i = 0; i < heard.size(); ++i) {
    if (heard[i].finish_reason != FinishReason::kNone) {
      expect_same(heard[i], expected[i], "request " + std::to_string(i));
      continue;
    }
    EXPECT_TRUE(cancelled.contains(i)) << "request " << i;
    const std::vector<int32_t>& tokens = expected[i].tokens;
    ASSERT_LE(heard[i].tokens.size(), tokens.size());
    EXPECT_TRUE(std::equal(heard[i].tokens.begin(), heard[i].tokens.end(), tokens.begin()));
  }
  const EngineStats stats = settled_stats(ranks.front());
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.kv_usage, 0);
}

class RandomShapes : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Transports, RandomShapes,
                         ::testing::Values("allgather_reducescatter", "alltoallv", "low_latency"),
                         [](const auto& it) { return std::string(it.param); });

// Every collective of every step compared over the ranks: 10,000 steps of each transport with
// ROTA_FULL.
TEST_P(RandomShapes, StepAfterStepNoCollectiveDiffers) {
  const int64_t goal = std::getenv("ROTA_FULL") != nullptr ? 10000 : 200;
  RankedEngine ranks(ranked_options("mixtral-bf16-h72", experts_dealt(4, GetParam())));
  ASSERT_TRUE(ranks.started()) << ranks.status(0).message();
  std::mt19937 random(14);
  std::atomic<int> live = 0;
  std::atomic<int> failed = 0;
  const auto steps = [&] {
    const EngineStats stats = ranks.front().stats();
    return stats.ranks.empty() ? 0 : stats.ranks[0].steps + stats.ranks[0].dummy_steps;
  };
  for (int number = 0; steps() < goal && failed == 0; ++number) {
    while (live > static_cast<int>(random() % 16)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EngineRequest request = mixed_requests(1, static_cast<uint32_t>(random())).front();
    request.id = std::to_string(number);
    const auto open = std::make_shared<std::atomic<bool>>(true);
    const auto ends = [&live, open] { live -= open->exchange(false) ? 1 : 0; };
    ++live;
    const Status status =
        ranks.front().submit(std::move(request), [ends, &failed](const RequestOutput& output) {
          failed += output.status.ok() ? 0 : 1;
          if (output.finish_reason != FinishReason::kNone) ends();
        });
    ASSERT_TRUE(status.ok()) << status.message();
    if (random() % 8 != 0) continue;
    ranks.front().cancel(std::to_string(number));
    ends();
  }
  EXPECT_TRUE(ranks.front().drain(300));
  EXPECT_EQ(failed, 0);
  ranks.end();
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(ranks.status(rank).ok()) << ranks.status(rank).message();
  }
}

TEST(RankLoop, ARankWithoutWorkFor500StepsDoesNotDrift) {
  testing::SmallEngineOptions small;
  small.max_model_len = 600;
  EngineRequest lonely;
  lonely.id = "lonely";
  lonely.prompt = {5, 6, 7};
  lonely.sampling = {.temperature = 0, .max_tokens = 500, .ignore_eos = true};
  std::vector<EngineRequest> after = mixed_requests(4, 11);
  for (EngineRequest& request : after) request.sampling.seed = 12;
  std::vector<EngineRequest> all = after;
  all.insert(all.begin(), lonely);
  const std::vector<Collected> expected = one_process("mixtral-bf16-h72", all, small);

  RankedEngine ranks(ranked_options("mixtral-bf16-h72", experts_dealt(3), small));
  ASSERT_TRUE(ranks.started()) << ranks.status(0).message();
  expect_same(answers_of(ranks.front(), {lonely}).front(), expected[0], "lonely");
  const EngineStats stats = settled_stats(ranks.front());
  EXPECT_EQ(groups_that_worked(stats), 1);
  for (const RankStats& rank : stats.ranks) EXPECT_EQ(rank.steps + rank.dummy_steps, 500);
  for (const std::vector<int64_t>& layer : stats.expert_tokens) {  // of the last step too
    EXPECT_EQ(std::accumulate(layer.begin(), layer.end(), int64_t{0}), (3 + 499) * 2);
  }
  const std::vector<Collected> answers = answers_of(ranks.front(), after);
  for (size_t i = 0; i < answers.size(); ++i) expect_same(answers[i], expected[i + 1], "after");
  EXPECT_EQ(groups_that_worked(settled_stats(ranks.front())), 3);
}

// What came while step n ran is in step n + 1.
TEST(RankLoop, WhoComesDuringAStepWaitsForNoOtherStep) {
  RankedEngine ranks(ranked_options("mixtral-bf16-h72", {.tensor_parallel_size = 2}));
  ASSERT_TRUE(ranks.started()) << ranks.status(0).message();
  const auto request = [](std::string id, int64_t tokens) {
    EngineRequest it;
    it.id = std::move(id);
    it.prompt = {1, 2, 3};
    it.sampling = {.temperature = 0, .max_tokens = tokens, .ignore_eos = true};
    return it;
  };
  // On the engine's thread, both.
  int of_first = 0;
  int when_second_began = 0;
  std::promise<void> done;
  const auto second = [&](const RequestOutput& output) {
    if (!output.tokens.empty()) when_second_began = of_first;
  };
  const auto first = [&](const RequestOutput& output) {
    of_first += static_cast<int>(output.tokens.size());
    if (of_first == 5) {
      EXPECT_TRUE(ranks.front().submit(request("second", 1), second).ok());
    }
    if (output.finish_reason != FinishReason::kNone) done.set_value();
  };
  ASSERT_TRUE(ranks.front().submit(request("first", 12), first).ok());
  done.get_future().wait();
  EXPECT_EQ(when_second_began, 6);
}

double cpu_seconds() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

TEST(RankLoop, IdleRanksParkAndWakeUp) {
  RankedEngine ranks(ranked_options("mixtral-bf16-h72", experts_dealt(4)),
                     {.comm = {.timeout_seconds = 60}});
  ASSERT_TRUE(ranks.started()) << ranks.status(0).message();
  answers_of(ranks.front(), mixed_requests(4, 13));
  settled_stats(ranks.front());
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_LT(cpu_seconds() - before, 0.5);  // of 1.5 s a core: ranks that do not park take it all
  EXPECT_LT(ranks.front().seconds_since_heartbeat(), 20);  // parked ranks meet

  EngineRequest request;
  request.id = "wake";
  request.prompt = {1, 2, 3};
  request.sampling = {.temperature = 0, .max_tokens = 1};
  EXPECT_TRUE(answers_of(ranks.front(), {request}).front().status.ok());
}

// One rank's thread leaves: all others end with an error that names it, and so do requests.
TEST(RankLoop, ARankThatLeavesEndsTheEngineOnAllOthers) {
  RankedEngine::Plan plan{.comm = {.timeout_seconds = 3}};
  plan.serve = [](LoadedEngine& loaded) -> Status {
    if (loaded.ranks.world->rank() != 2) return serve_rank(loaded);
    ROTA_ASSIGN_OR_RETURN(const auto core, EngineCore::make(loaded));
    return RankLoop::make(loaded, *core).status();  // and never runs
  };
  RankedEngine ranks(ranked_options("mixtral-bf16-h72", experts_dealt(3)), plan);
  ASSERT_TRUE(ranks.started()) << ranks.status(0).message();
  const Clock::time_point start = Clock::now();
  EngineRequest request;
  request.id = "lost";
  request.prompt = {1, 2, 3};
  auto done = std::make_shared<std::promise<RequestOutput>>();
  const Status submitted = ranks.front().submit(
      request, [done](const RequestOutput& output) { done->set_value(output); });
  if (submitted.ok()) {
    const RequestOutput output = done->get_future().get();
    EXPECT_EQ(output.status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(output.status.message(), AllOf(HasSubstr("the engine has failed"), HasSubstr("2")));
  }
  while (ranks.front().state() != EngineState::kFailed && seconds_since(start) < 60) {
    std::this_thread::yield();
  }
  EXPECT_EQ(ranks.front().state(), EngineState::kFailed);
  EXPECT_EQ(ranks.front().submit(request, [](const RequestOutput&) {}).code(),
            StatusCode::kUnavailable);
  ranks.end();
  EXPECT_EQ(ranks.status(1).code(), StatusCode::kUnavailable);
  EXPECT_LT(seconds_since(start), 60);
}

TEST(RankLoop, AFailureIsToldBeforeAnyClient) {
  LoopbackRanks ranks(2, {.timeout_seconds = 2});
  const EngineOptions options = ranked_options("mixtral-bf16-h72", experts_dealt(2));
  std::jthread other([&] {
    LoadedEngine loaded = load_engine(options, ranks.communicator(1)).value();
    const auto core = EngineCore::make(loaded).value();
    EXPECT_TRUE(RankLoop::make(loaded, *core).ok());
  });
  std::promise<Status> failed;
  const auto engine =
      InProcessEngine::start(load_engine(options, ranks.communicator(0)).value(),
                             [&](const Status& status) { failed.set_value(status); })
          .value();
  EXPECT_EQ(failed.get_future().get().code(), StatusCode::kUnavailable);
}

TEST(RankLoop, RanksWithDifferentOptionsRefuseWithBothNames) {
  RankedEngine::Plan plan;
  plan.change = [](int rank, EngineOptions& options) {
    if (rank == 1) options.max_num_seqs = 4;
  };
  RankedEngine ranks(ranked_options("mixtral-bf16-h72", experts_dealt(2)), plan);
  EXPECT_FALSE(ranks.started());
  ranks.end();
  for (const int rank : {0, 1}) {
    EXPECT_THAT(ranks.status(rank).message(),
                AllOf(HasSubstr("option max_num_seqs"), HasSubstr("rank 0"), HasSubstr("8"),
                      HasSubstr("rank 1"), HasSubstr("4")));
  }
}

TEST(RankLoop, RanksWithDifferentConfigsRefuseWithBothNames) {
  RankedEngine::Plan plan;
  plan.change = [](int rank, EngineOptions& options) {
    if (rank == 1) options.hf_overrides = "{\"rms_norm_eps\": 0.5}";
  };
  RankedEngine ranks(ranked_options("mixtral-bf16-h72", experts_dealt(2)), plan);
  EXPECT_FALSE(ranks.started());
  ranks.end();
  for (const int rank : {0, 1}) {
    EXPECT_THAT(ranks.status(rank).message(),
                AllOf(HasSubstr("hf_overrides"), HasSubstr("rank 0"), HasSubstr("rank 1"),
                      HasSubstr("rms_norm_eps")));
  }
}

TEST(RankLoop, ARankThatCannotLoadFailsAll) {
  RankedEngine::Plan plan;
  plan.change = [](int rank, EngineOptions& options) {
    if (rank == 2) options.model = "/nowhere";
  };
  RankedEngine ranks(ranked_options("mixtral-bf16-h72", experts_dealt(3)), plan);
  ranks.end();
  for (const int rank : {0, 1}) {
    EXPECT_THAT(ranks.status(rank).message(), AllOf(HasSubstr("rank 2"), HasSubstr("/nowhere")));
  }
}

// A step that met it would fail on rank 1 alone: the others would wait in the middle of theirs.
TEST(RankLoop, ADamagedExpertOfOneRankIsFoundBeforeAnyIsReady) {
  const testing::DamagedModel damaged("gptoss-mxfp4-h160", {.layer = 0, .expert = 7}, 8);
  EngineOptions options = ranked_options("gptoss-mxfp4-h160", experts_dealt(2));
  options.model = damaged.dir();
  RankedEngine ranks(options);
  EXPECT_FALSE(ranks.started());
  ranks.end();
  for (const int rank : {0, 1}) {
    EXPECT_EQ(ranks.status(rank).code(), StatusCode::kDataLoss);
    EXPECT_THAT(ranks.status(rank).message(), HasSubstr(damaged.tensor()));
  }
  EXPECT_THAT(ranks.status(0).message(), HasSubstr("rank 1: "));
}

TEST(RankLoop, ARankWithOptionsOutOfRangeFailsAll) {
  RankedEngine::Plan plan;
  plan.change = [](int rank, EngineOptions& options) {
    if (rank == 1) options.parallel.data_parallel_size = 3;
  };
  RankedEngine ranks(ranked_options("mixtral-bf16-h72", experts_dealt(2)), plan);
  ranks.end();
  EXPECT_THAT(ranks.status(0).message(),
              AllOf(HasSubstr("rank 1: "), HasSubstr("--data-parallel-size 3")));
}

TEST(RankLoop, AnotherNumberOfRanksIsRefused) {
  LoopbackRanks ranks(2, {.timeout_seconds = 30});
  ranks.run([](Communicator& rank) {
    const EngineOptions options = ranked_options("mixtral-bf16-h72", experts_dealt(3));
    EXPECT_THAT(load_engine(options, rank).status().message(),
                AllOf(HasSubstr("--data-parallel-size 3"), HasSubstr("there are 2")));
  });
}

TEST(LoadEngine, RanksDivideTheHostAndAgreeOnTheCache) {
  LoopbackRanks ranks(3, {.timeout_seconds = 60, .check_collectives = true});
  std::vector<KvBudget> budgets(3);
  std::vector<EngineInfo> infos(3);
  ranks.run([&](Communicator& rank) {
    EngineOptions options = ranked_options("mixtral-bf16-h72", experts_dealt(3));
    options.threads = 0;
    options.kv_cache_memory_bytes = 0;
    options.memory_utilization = 0.01;
    const auto loaded = load_engine(options, rank);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    budgets[static_cast<size_t>(rank.rank())] = loaded->kv;
    infos[static_cast<size_t>(rank.rank())] = loaded->info();
    EXPECT_TRUE(loaded->options.verify_weights);
    EXPECT_NE(loaded->hash, 0u);
    EXPECT_LE(loaded->team->size(), std::max(1, loaded->cpu.physical_cores / 3));
  });
  for (const KvBudget& budget : budgets) {
    EXPECT_EQ(budget.pages, budgets[0].pages);
    EXPECT_EQ(budget.max_model_len, budgets[0].max_model_len);
  }
  EXPECT_EQ(infos[0].kv_tokens, 3 * budgets[0].tokens);
  EXPECT_EQ(infos[0].max_num_seqs, 3 * 8);
}

}  // namespace
}  // namespace rota
