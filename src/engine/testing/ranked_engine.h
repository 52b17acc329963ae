// An engine whose ranks are threads of this process, for tests: loaded and served as ranks of any
// kind are.
//
//   RankedEngine ranks(ranked_options("gptoss-mxfp4-h160", {.data_parallel_size = 3, ...}));
//   std::vector<Collected> answers = answers_of(ranks.front(), requests);
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/loopback.h"
#include "engine/in_process_engine.h"
#include "engine/rank_loop.h"
#include "engine/testing/small_engine.h"

namespace rota::testing {

inline EngineOptions ranked_options(const std::string& model, const ParallelOptions& parallel,
                                    const SmallEngineOptions& small = {}) {
  EngineOptions options = small_options(model, small);
  options.threads = 1;
  options.parallel = parallel;
  return options;
}

class RankedEngine {
 public:
  // What a rank other than 0 does once it is loaded.
  using ServeFn = std::function<Status(LoadedEngine&)>;

  struct Plan {
    CommOptions comm = {.timeout_seconds = 120, .check_collectives = true};
    std::function<void(int rank, EngineOptions&)> change = {};  // options of one rank
    ServeFn serve = serve_rank;
  };

  explicit RankedEngine(const EngineOptions& options) : RankedEngine(options, Plan()) {}
  RankedEngine(const EngineOptions& options, const Plan& plan)
      : ranks_(options.parallel.data_parallel_size * options.parallel.tensor_parallel_size),
        loopback_(ranks_, plan.comm),
        ended_(static_cast<size_t>(ranks_)) {
    for (int rank = 1; rank < ranks_; ++rank) {
      threads_.emplace_back([this, rank, options, plan] {
        ended_[static_cast<size_t>(rank)] = run(rank, options, plan);
      });
    }
    EngineOptions mine = options;
    if (plan.change) plan.change(0, mine);
    Result<LoadedEngine> loaded = load_engine(mine, loopback_.communicator(0));
    Status status = status_of(loaded);
    if (loaded.ok()) {
      auto front = InProcessEngine::start(std::move(*loaded));
      status = status_of(front);
      if (front.ok()) front_ = std::move(*front);
    }
    ended_[0] = status;
  }
  ~RankedEngine() { end(); }

  InProcessEngine& front() { return *front_; }
  bool started() const { return front_ != nullptr; }

  // Stops rank 0, and waits for the others.
  void end() {
    front_.reset();
    threads_.clear();
  }
  // How a rank ended, after end(); rank 0: how it started.
  const Status& status(int rank) const { return ended_[static_cast<size_t>(rank)]; }

 private:
  Status run(int rank, EngineOptions options, const Plan& plan) {
    if (plan.change) plan.change(rank, options);
    ROTA_ASSIGN_OR_RETURN(LoadedEngine loaded, load_engine(options, loopback_.communicator(rank)));
    return plan.serve(loaded);
  }

  int ranks_;
  LoopbackRanks loopback_;
  std::vector<Status> ended_;
  std::unique_ptr<InProcessEngine> front_;
  std::vector<std::jthread> threads_;  // first to end: they use the others
};

inline std::future<Collected> submit(EngineClient& engine, EngineRequest request) {
  auto promise = std::make_shared<std::promise<Collected>>();
  auto collected = std::make_shared<Collected>();
  const Status status = engine.submit(std::move(request), [=](const RequestOutput& output) {
    collected->add(output);
    if (output.finish_reason != FinishReason::kNone) promise->set_value(*collected);
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return promise->get_future();
}

inline std::vector<Collected> answers_of(EngineClient& engine,
                                         const std::vector<EngineRequest>& requests) {
  std::vector<std::future<Collected>> futures;
  futures.reserve(requests.size());
  for (const EngineRequest& request : requests) futures.push_back(submit(engine, request));
  std::vector<Collected> answers;
  answers.reserve(futures.size());
  for (std::future<Collected>& future : futures) answers.push_back(future.get());
  return answers;
}

}  // namespace rota::testing
