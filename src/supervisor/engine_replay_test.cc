// The engine dies under requests: what their clients are told is what an undisturbed run tells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <random>

#include "supervisor/testing/engine_process_run.h"

namespace rota {
namespace {

using testing::Answer;
using testing::Collected;
using ::testing::ElementsAre;
using testing::eventually;
using testing::expect_same;
using testing::greedy;
using ::testing::HasSubstr;
using testing::kPatience;
using testing::process_options;
using testing::start_ready;

using Answers = std::vector<std::unique_ptr<Answer>>;

EngineProcessOptions replay_options(const std::string& model = "gptoss-mxfp4-h160") {
  EngineProcessOptions options = process_options(model);
  options.engine.max_model_len = 512;
  options.restarts.max_failures = 1000;
  options.restarts.first_backoff = 0.01;
  options.restarts.max_backoff = 0.05;
  return options;
}

std::vector<int32_t> random_prompt(std::mt19937& random, size_t length) {
  std::vector<int32_t> prompt(length);
  for (int32_t& token : prompt) token = static_cast<int32_t>(random() % 500);
  return prompt;
}

// Everything that must go on where it stopped: greedy and sampled, with a seed and without, all
// kinds of penalties, logprobs, stop tokens, traced experts; more requests than run at once.
std::vector<EngineRequest> load(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<EngineRequest> requests;
  const std::vector<size_t> lengths = {1, 63, 64, 130, 200};
  for (size_t i = 0; i < 12; ++i) {
    EngineRequest request = greedy(fmt::format("request-{}", i),
                                   random_prompt(random, lengths[i % lengths.size()]), 100);
    SamplingParams& sampling = request.sampling;
    if (i % 3 != 0) sampling.temperature = 0.9;
    if (i % 3 == 1) sampling.seed = static_cast<int64_t>(random());
    if (i % 4 == 1) sampling.top_p = 0.8;
    if (i % 4 == 2) sampling.top_k = 50;
    if (i % 5 == 3) sampling.frequency_penalty = 0.7;
    if (i % 5 == 4) sampling.presence_penalty = 0.5;
    if (i % 4 == 3) sampling.repetition_penalty = 1.3;
    if (i % 2 == 0) sampling.logprobs = 3;
    if (i % 4 == 0) sampling.prompt_logprobs = 1;
    if (i % 6 == 5) sampling.min_tokens = 60;
    for (int32_t token = 0; i % 6 == 5 && token < 60; ++token) {
      sampling.stop_token_ids.push_back(token);
    }
    request.trace_experts = i % 5 == 0;
    requests.push_back(std::move(request));
  }
  return requests;
}

Answers submit(SocketEngineClient& engine, const std::vector<EngineRequest>& requests) {
  Answers answers;
  for (const EngineRequest& request : requests) {
    answers.push_back(std::make_unique<Answer>());
    const Status status = engine.submit(request, answers.back()->collect());
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return answers;
}

std::vector<Collected> wait_for_all(const Answers& answers) {
  std::vector<Collected> all;
  for (const auto& answer : answers) {
    EXPECT_TRUE(answer->wait_for_end());
    all.push_back(answer->all());
  }
  return all;
}

std::vector<Collected> undisturbed(const EngineProcessOptions& options,
                                   const std::vector<EngineRequest>& requests) {
  const auto engine = start_ready(options);
  std::vector<Collected> all = wait_for_all(submit(*engine, requests));
  EXPECT_EQ(engine->restarts(), 0);
  return all;
}

void expect_told_as(const std::vector<Collected>& expected, const Answers& answers) {
  const std::vector<Collected> all = wait_for_all(answers);
  ASSERT_EQ(expected.size(), all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string what = fmt::format("request {}", i);
    expect_same(expected[i], all[i], what);
    EXPECT_EQ(all[i].stop_token, expected[i].stop_token) << what;
    EXPECT_EQ(all[i].outputs_after_the_end, 0) << what;
    EXPECT_TRUE(all[i].status.ok()) << what << ": " << all[i].status.message();
    EXPECT_EQ(answers[i]->prompt_logprobs_told(), expected[i].prompt_logprobs.empty() ? 0 : 1);
    EXPECT_EQ(answers[i]->cached_tokens_told().size(), 1u) << what;
    for (size_t t = 0; t < all[i].output_tokens.size(); ++t) {
      EXPECT_EQ(all[i].output_tokens[t].experts, expected[i].output_tokens[t].experts) << what;
    }
  }
}

size_t tokens_of(const Answers& answers) {
  size_t sum = 0;
  for (const auto& answer : answers) sum += answer->tokens().size();
  return sum;
}

bool all_ended(const Answers& answers) {
  return std::all_of(answers.begin(), answers.end(), [](const auto& answer) {
    return answer->finish_reason() != FinishReason::kNone;
  });
}

// Ends the process that runs now and waits for the next one.
void replace_engine(SocketEngineClient& engine, int signal) {
  const int64_t restarts = engine.restarts();
  ::kill(engine.pid(), signal);
  ASSERT_TRUE(eventually([&] { return engine.restarts() > restarts; }));
  ASSERT_TRUE(engine.wait_until_ready(kPatience).ok());
}

class EveryKind : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Replay, EveryKind,
                         ::testing::Values("gptoss-mxfp4-h160", "nemotron-nvfp4-h112"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(EveryKind, KilledAtAnyMomentNoTokenIsLostOrToldTwice) {
  const EngineProcessOptions options = replay_options(GetParam());
  const std::vector<EngineRequest> requests = load(1);
  const std::vector<Collected> expected = undisturbed(options, requests);
  const auto engine = start_ready(options);
  const Answers answers = submit(*engine, requests);
  std::mt19937 random(2);
  for (int kills = 0; kills < 6; ++kills) {
    const size_t goal = tokens_of(answers) + random() % 150;
    ASSERT_TRUE(eventually([&] { return tokens_of(answers) >= goal || all_ended(answers); }));
    if (all_ended(answers)) break;
    replace_engine(*engine, SIGKILL);
  }
  EXPECT_GE(engine->restarts(), 4);
  expect_told_as(expected, answers);
  EXPECT_GE(engine->stats().replayed_requests, engine->restarts());
  EXPECT_EQ(engine->stats().engine_restarts, engine->restarts());
}

TEST_P(EveryKind, AHangIsNoticedAndGoesOn) {
  EngineProcessOptions options = replay_options(GetParam());
  const std::vector<EngineRequest> requests = load(3);
  const std::vector<Collected> expected = undisturbed(options, requests);
  options.heartbeat_timeout = 5;  // with sanitizers it must not be taken for one
  const auto engine = start_ready(options);
  const Answers answers = submit(*engine, requests);
  ASSERT_TRUE(answers.front()->wait_for_tokens(5));
  replace_engine(*engine, SIGSTOP);
  expect_told_as(expected, answers);
  EXPECT_EQ(engine->restarts(), 1);
}

TEST(Replay, KilledWhileItReplays) {
  const EngineProcessOptions options = replay_options();
  const std::vector<EngineRequest> requests = load(4);
  const std::vector<Collected> expected = undisturbed(options, requests);
  const auto engine = start_ready(options);
  const Answers answers = submit(*engine, requests);
  ASSERT_TRUE(answers.front()->wait_for_tokens(20));
  const pid_t first = engine->pid();
  ::kill(first, SIGSEGV);
  ASSERT_TRUE(eventually([&] { return engine->pid() > 0 && engine->pid() != first; }));
  replace_engine(*engine, SIGKILL);  // while it loads, or replays
  replace_engine(*engine, SIGKILL);  // as soon as it is there
  EXPECT_EQ(engine->restarts(), 3);
  expect_told_as(expected, answers);
}

// The second failure in a row is followed by a pause that leaves time for what clients do in it.
std::unique_ptr<SocketEngineClient> start_for_a_pause(double seconds) {
  EngineProcessOptions options = replay_options();
  options.engine.max_num_seqs = 2;
  options.engine.max_waiting = 2;
  options.restarts.first_backoff = options.restarts.max_backoff = seconds;
  return start_ready(options);
}

void enter_the_pause(SocketEngineClient& engine) {
  replace_engine(engine, SIGKILL);
  ::kill(engine.pid(), SIGKILL);
  ASSERT_TRUE(eventually([&] { return engine.state() == EngineState::kRestarting; }));
}

TEST(Replay, RequestsThatComeInThePauseWaitAndThoseThatLeaveAreForgotten) {
  const auto engine = start_for_a_pause(2);
  Answer stays;
  Answer leaves;
  ASSERT_TRUE(engine->submit(greedy("stays", {1, 2, 3}, 300), stays.collect()).ok());
  ASSERT_TRUE(engine->submit(greedy("leaves", {4, 5}, 300), leaves.collect()).ok());
  ASSERT_TRUE(stays.wait_for_tokens(1));
  enter_the_pause(*engine);
  ASSERT_TRUE(engine->info().ok());
  engine->cancel("leaves");
  const size_t told = leaves.tokens().size();
  Answer comes;
  Answer second;
  Answer third;
  EXPECT_THAT(engine->submit(greedy("large", {1}, 1000), comes.collect()).message(),
              HasSubstr("maximum context length is 512"));
  EXPECT_THAT(engine->submit(greedy("stays", {1}, 10), comes.collect()).message(),
              HasSubstr("in use"));
  ASSERT_TRUE(engine->submit(greedy("comes", {4, 5}, 20), comes.collect()).ok());
  ASSERT_TRUE(engine->submit(greedy("second", {1, 2, 3}, 20), second.collect()).ok());
  ASSERT_TRUE(engine->submit(greedy("third", {1, 2, 3}, 20), third.collect()).ok());
  EXPECT_EQ(engine->submit(greedy("fourth", {1}, 1), comes.collect()).code(),
            StatusCode::kResourceExhausted);
  engine->cancel("third");
  EXPECT_EQ(engine->state(), EngineState::kRestarting);
  ASSERT_TRUE(stays.wait_for_end());
  ASSERT_TRUE(comes.wait_for_end());
  ASSERT_TRUE(second.wait_for_end());
  EXPECT_EQ(comes.tokens().size(), 20u);
  EXPECT_EQ(stays.tokens().size(), 300u);
  const std::vector<int32_t> all = stays.tokens();
  EXPECT_EQ(second.tokens(), std::vector<int32_t>(all.begin(), all.begin() + 20));
  EXPECT_EQ(leaves.tokens().size(), told);
  EXPECT_EQ(leaves.finish_reason(), FinishReason::kNone);
  EXPECT_TRUE(third.tokens().empty());
}

TEST(Replay, CancelledAfterItWasReplayedItsPagesAreFree) {
  const auto engine = start_ready(replay_options());
  Answer answer;
  ASSERT_TRUE(engine->submit(greedy("a", {1, 2, 3}, 500), answer.collect()).ok());
  ASSERT_TRUE(answer.wait_for_tokens(2));
  replace_engine(*engine, SIGKILL);
  ASSERT_TRUE(answer.wait_for_tokens(answer.tokens().size() + 2));
  engine->cancel("a");
  EXPECT_TRUE(eventually([&] { return engine->stats().kv_usage == 0; }));
  EXPECT_EQ(answer.finish_reason(), FinishReason::kNone);
}

TEST(Replay, CachedTokensStayThoseOfTheFirstRun) {
  const auto engine = start_ready(replay_options());
  const std::vector<int32_t> prompt(200, 9);
  Answer warm;
  ASSERT_TRUE(engine->submit(greedy("a", prompt, 2), warm.collect()).ok());
  ASSERT_TRUE(warm.wait_for_end());
  Answer answer;
  ASSERT_TRUE(engine->submit(greedy("a", prompt, 250), answer.collect()).ok());
  ASSERT_TRUE(answer.wait_for_tokens(1));
  replace_engine(*engine, SIGKILL);
  ASSERT_TRUE(answer.wait_for_end());
  EXPECT_THAT(answer.cached_tokens_told(), ElementsAre(192));
}

TEST(Replay, TooManyFailuresEndAllRequestsWithTheReason) {
  EngineProcessOptions options = replay_options();
  options.restarts.max_failures = 1;
  const auto engine = start_ready(options);
  Answer answer;
  ASSERT_TRUE(engine->submit(greedy("a", {1, 2, 3}, 500), answer.collect()).ok());
  ASSERT_TRUE(answer.wait_for_tokens(1));
  replace_engine(*engine, SIGKILL);
  ::kill(engine->pid(), SIGKILL);
  ASSERT_TRUE(answer.wait_for_end());
  EXPECT_EQ(answer.finish_reason(), FinishReason::kError);
  EXPECT_EQ(answer.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(answer.status().message(), HasSubstr("failed 2 times and is not started again"));
  EXPECT_THAT(answer.status().message(), HasSubstr("signal 9"));
  EXPECT_EQ(engine->state(), EngineState::kFailed);
  EXPECT_EQ(engine->restarts(), 1);
  EXPECT_FALSE(engine->submit(greedy("b", {1}, 1), answer.collect()).ok());
}

// Long prompts: each death comes before the first token that the engine would tell.
TEST(Replay, TheRequestThatIsThereInThreeDeathsInARowEndsAlone) {
  EngineProcessOptions options = process_options();
  options.engine.max_num_batched_tokens = 8;
  options.restarts.max_failures = 1000;
  std::mt19937 random(6);
  const std::vector<EngineRequest> requests = {greedy("a", random_prompt(random, 4000), 40),
                                               greedy("b", random_prompt(random, 4000), 40)};
  const std::vector<Collected> expected = undisturbed(options, requests);
  const auto engine = start_ready(options);
  const Answers answers = submit(*engine, requests);
  for (int i = 0; i < 3; ++i) replace_engine(*engine, SIGSEGV);
  ASSERT_TRUE(answers[0]->wait_for_end());
  ASSERT_TRUE(answers[1]->wait_for_end());
  EXPECT_EQ(answers[0]->status().code(), StatusCode::kInternal);
  EXPECT_THAT(answers[0]->status().message(), HasSubstr("died 3 times in a row"));
  expect_same(expected[1], answers[1]->all(), "the other one");
  EXPECT_EQ(engine->restarts(), 3);
}

TEST(Replay, DrainWaitsForTheNextEngine) {
  const auto engine = start_ready(replay_options());
  Answer answer;
  ASSERT_TRUE(engine->submit(greedy("a", {1, 2, 3}, 300), answer.collect()).ok());
  ASSERT_TRUE(answer.wait_for_tokens(1));
  ::kill(engine->pid(), SIGKILL);
  EXPECT_TRUE(engine->drain(kPatience));
  EXPECT_EQ(answer.finish_reason(), FinishReason::kLength);
  EXPECT_EQ(answer.tokens().size(), 300u);
}

}  // namespace
}  // namespace rota
