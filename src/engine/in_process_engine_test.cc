#include "engine/in_process_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "engine/testing/small_engine.h"

namespace rota {
namespace {

using ::testing::HasSubstr;
using testing::request_of;
using testing::small_options;

std::unique_ptr<InProcessEngine> start(const std::string& model = "mixtral-bf16-h72") {
  return InProcessEngine::start(small_options(model)).value();
}

// The request's tokens, once it has ended.
std::future<testing::Collected> submit(InProcessEngine& engine, EngineRequest request) {
  auto promise = std::make_shared<std::promise<testing::Collected>>();
  auto collected = std::make_shared<testing::Collected>();
  const Status status = engine.submit(std::move(request), [=](const RequestOutput& output) {
    collected->add(output);
    if (output.finish_reason != FinishReason::kNone) promise->set_value(*collected);
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return promise->get_future();
}

TEST(InProcessEngine, GivesTheGoldenTokens) {
  const nlohmann::json prompts = testing::golden("mixtral-bf16-h72")["prompts"];
  const auto engine = start();
  EXPECT_EQ(engine->state(), EngineState::kReady);
  std::vector<std::future<testing::Collected>> answers;
  for (const auto& prompt : prompts) {
    answers.push_back(submit(*engine, request_of(prompt["ids"], 32)));
  }
  size_t i = 0;
  for (const auto& prompt : prompts) {
    EXPECT_EQ(answers[i++].get().tokens, prompt["greedy"].get<std::vector<int32_t>>());
  }
}

TEST(InProcessEngine, ParksWhileThereIsNothingToDo) {
  const auto engine = start();
  submit(*engine, request_of({1, 2, 3}, 4)).get();
  rusage before;
  rusage after;
  ::getrusage(RUSAGE_SELF, &before);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ::getrusage(RUSAGE_SELF, &after);
  const auto seconds = [](const rusage& usage) {
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
  };
  EXPECT_LT(seconds(after) - seconds(before), 0.25);  // a spinning thread would take 0.5
  EXPECT_EQ(engine->seconds_since_heartbeat(), 0);
}

TEST(InProcessEngine, DestructionTellsThoseThatAreLeft) {
  auto engine = start();
  auto answer = submit(*engine, request_of({1, 2, 3}, 500));
  engine.reset();
  const testing::Collected collected = answer.get();
  EXPECT_EQ(collected.finish_reason, FinishReason::kError);
  EXPECT_EQ(collected.status.code(), StatusCode::kUnavailable);
}

TEST(InProcessEngine, DrainRefusesNewAndFinishesOld) {
  const auto engine = start();
  auto answer = submit(*engine, request_of({1, 2, 3}, 50));
  EXPECT_TRUE(engine->drain(120));
  EXPECT_EQ(answer.get().tokens.size(), 50u);
  EXPECT_EQ(engine->state(), EngineState::kDraining);
  EXPECT_EQ(engine->submit(request_of({1}, 1), [](const RequestOutput&) {}).code(),
            StatusCode::kUnavailable);
}

TEST(InProcessEngine, IdsAreUniqueAmongTheRunning) {
  const auto engine = start();
  EngineRequest request = request_of({1, 2, 3}, 200);
  auto answer = submit(*engine, request);
  EXPECT_THAT(engine->submit(request, [](const RequestOutput&) {}).message(), HasSubstr("in use"));
  engine->cancel(request.id);
  EXPECT_EQ(submit(*engine, request).get().tokens.size(), 200u);
}

TEST(InProcessEngine, ABadRequestIsRefusedAtOnce) {
  const auto engine = start();
  EXPECT_EQ(engine->submit(request_of({}, 1), [](const RequestOutput&) {}).code(),
            StatusCode::kInvalidArgument);
}

// What was cancelled before the engine's thread has seen it is gone at once: a client that asks and
// leaves while a long step runs costs nothing.
TEST(InProcessEngine, CancelledBeforeItWasSeenIsForgottenAtOnce) {
  const auto engine = start();
  std::promise<void> in_step;
  std::promise<void> go_on;
  std::future<void> may_go_on = go_on.get_future();
  std::once_flag once;
  ASSERT_TRUE(engine
                  ->submit(request_of({1, 2, 3}, 3),
                           [&](const RequestOutput&) {
                             std::call_once(once, [&] {
                               in_step.set_value();
                               may_go_on.wait();
                             });
                           })
                  .ok());
  in_step.get_future().wait();
  for (int i = 0; i < 100; ++i) {
    auto kept = std::make_shared<int>(i);
    const std::weak_ptr<int> watched = kept;
    const EngineRequest request = request_of({4, 5}, 3);
    ASSERT_TRUE(engine->submit(request, [kept](const RequestOutput&) {}).ok());
    kept.reset();
    EXPECT_FALSE(watched.expired());
    engine->cancel(request.id);
    EXPECT_TRUE(watched.expired());
  }
  go_on.set_value();
  EXPECT_TRUE(engine->drain(120));
}

// Many threads submit and cancel; nothing is lost, nothing is left.
TEST(InProcessEngine, ChurnFromManyThreads) {
  const auto engine = start();
  std::atomic<int> ended = 0;
  std::atomic<int> cancelled = 0;
  std::atomic<int> refused = 0;
  constexpr int kThreads = 4;
  constexpr int kEach = 40;
  std::vector<std::jthread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<uint32_t>(t));
      for (int i = 0; i < kEach; ++i) {
        EngineRequest request;
        request.id = std::to_string(t) + "/" + std::to_string(i);
        request.prompt =
            std::vector<int32_t>(1 + random() % 100, static_cast<int32_t>(random() % 600));
        request.sampling.max_tokens = static_cast<int64_t>(1 + random() % 20);
        request.sampling.ignore_eos = true;
        const std::string id = request.id;
        const Status status = engine->submit(std::move(request), [&](const RequestOutput& output) {
          ended += output.finish_reason == FinishReason::kLength ? 1 : 0;
        });
        if (!status.ok()) {
          ++refused;
        } else if (random() % 4 == 0) {
          engine->cancel(id);
          ++cancelled;
        }
      }
    });
  }
  threads.clear();
  EXPECT_TRUE(engine->drain(300));
  EXPECT_GE(ended + cancelled + refused, kThreads * kEach);  // a cancelled one may have ended
  EXPECT_GT(ended, 0);
  const auto start = Clock::now();
  while (engine->stats().kv_usage > 0 && seconds_since(start) < 60) std::this_thread::yield();
  EXPECT_EQ(engine->stats().kv_usage, 0);
  EXPECT_EQ(engine->stats().running, 0);
}

}  // namespace
}  // namespace rota
