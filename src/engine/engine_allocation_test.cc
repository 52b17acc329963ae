// No heap allocation in a decode step after warm-up: this program counts them.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <new>
#include <thread>

#include "comm/loopback.h"
#include "engine/engine_core.h"
#include "engine/testing/ranked_engine.h"

namespace {
std::atomic<int64_t> g_allocations = 0;

void* counted(std::size_t bytes, std::align_val_t alignment = std::align_val_t{16}) noexcept {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  const auto to = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(to, (std::max<std::size_t>(bytes, 1) + to - 1) / to * to);
}
void* counted_or_throw(std::size_t bytes, std::align_val_t alignment = std::align_val_t{16}) {
  if (void* memory = counted(bytes, alignment)) return memory;
  throw std::bad_alloc();
}
// Not inlined: g++ 12 would see free() behind new and warn of a mismatch (-Wmismatched-new-delete).
[[gnu::noinline]] void free_counted(void* memory) noexcept { std::free(memory); }
}  // namespace

// Every kind of new, as whoever calls one kind frees by ours.
void* operator new(std::size_t bytes) { return counted_or_throw(bytes); }
void* operator new[](std::size_t bytes) { return counted_or_throw(bytes); }
void* operator new(std::size_t bytes, std::align_val_t to) { return counted_or_throw(bytes, to); }
void* operator new[](std::size_t bytes, std::align_val_t to) { return counted_or_throw(bytes, to); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes); }
void operator delete(void* memory) noexcept { free_counted(memory); }
void operator delete[](void* memory) noexcept { free_counted(memory); }
void operator delete(void* memory, std::size_t) noexcept { free_counted(memory); }
void operator delete[](void* memory, std::size_t) noexcept { free_counted(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { free_counted(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { free_counted(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { free_counted(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  free_counted(memory);
}

namespace rota {
namespace {

TEST(DecodeStep, DoesNotAllocate) {
  const auto loaded = testing::small_engine("gptoss-mxfp4-h160");
  const auto core = EngineCore::make(*loaded).value();
  const auto ignore = [](const RequestOutput&) {};
  for (int32_t i = 0; i < 4; ++i) {
    EngineRequest request = testing::request_of({1, 2, 3, i}, 300, i % 2 == 0 ? 0.0 : 0.8);
    request.sampling.seed = i;
    if (i == 3) request.sampling.top_p = 0.9;
    if (i == 1) request.sampling.frequency_penalty = 0.5;
    ASSERT_TRUE(core->add(request, ignore).ok());
  }
  for (int step = 0; step < 10; ++step) core->step();
  const int64_t before = g_allocations;
  EXPECT_GT(before, 0);  // they are counted at all
  // Across several blocks: new pages, full blocks that enter the prefix cache, a window that moves.
  for (int step = 0; step < 250; ++step) core->step();
  EXPECT_EQ(g_allocations - before, 0);
  EXPECT_TRUE(core->has_work());
}

// A rank's core, and steps of it in lockstep with the other ranks that have the same requests.
class DecodingRank {
 public:
  DecodingRank(const EngineOptions& options, Communicator& ranks)
      : loaded_(load_engine(options, ranks).value()),
        core_(EngineCore::make(loaded_).value()),
        tokens_(static_cast<size_t>(options.parallel.data_parallel_size)) {
    for (int32_t i = 0; i < 3; ++i) {
      EngineRequest request = testing::request_of({1, 2, 3, i}, 300, i % 2 == 0 ? 0.0 : 0.8);
      request.id = fmt::format("request-{}", i);
      request.sampling.seed = i;
      EXPECT_TRUE(core_->add(std::move(request), [](const RequestOutput&) {}).ok());
    }
  }

  Status steps(int count) {
    for (int step = 0; step < count; ++step) {
      std::fill(tokens_.begin(), tokens_.end(), core_->prepare_step());
      ROTA_RETURN_IF_ERROR(
          core_->run_step({.tokens_of_group = tokens_, .decodes = core_->prepared_decodes()}));
    }
    return {};
  }
  int64_t replays() { return core_->stats().replayed_steps; }

 private:
  LoadedEngine loaded_;
  std::unique_ptr<EngineCore> core_;
  std::vector<int64_t> tokens_;
};

struct Ranks {
  int tp, dp;
  const char* transport;
};

// Replays of a captured step, from before its first to after its last on every rank.
class ReplayOverRanks : public ::testing::TestWithParam<Ranks> {};

TEST_P(ReplayOverRanks, DoesNotAllocate) {
  constexpr int kReplays = 60;
  const auto& [tp, dp, transport] = GetParam();
  const EngineOptions options =
      testing::ranked_options("gptoss-mxfp4-h160", {.tensor_parallel_size = tp,
                                                    .data_parallel_size = dp,
                                                    .enable_expert_parallel = dp > 1,
                                                    .all2all_backend = transport});
  LoopbackRanks loopback(tp * dp, {.timeout_seconds = 120});
  std::barrier border(tp * dp);
  std::atomic<int64_t> taken = 0;
  const auto run = [&](int rank) {
    DecodingRank it(options, loopback.communicator(rank));
    EXPECT_TRUE(it.steps(10).ok());  // the prompts
    const int64_t replays = it.replays();
    border.arrive_and_wait();
    const int64_t before = g_allocations;
    border.arrive_and_wait();
    EXPECT_TRUE(it.steps(kReplays).ok());
    border.arrive_and_wait();
    if (rank == 0) taken = g_allocations - before;
    border.arrive_and_wait();
    EXPECT_EQ(it.replays() - replays, kReplays);
  };
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<size_t>(loopback.communicator(0).ranks()));
    for (int rank = 0; rank < tp * dp; ++rank) threads.emplace_back(run, rank);
  }
  EXPECT_EQ(taken, 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ReplayOverRanks,
                         ::testing::Values(Ranks{1, 3, "allgather_reducescatter"},
                                           Ranks{1, 3, "alltoallv"}, Ranks{1, 3, "low_latency"},
                                           Ranks{2, 2, "alltoallv"}, Ranks{2, 1, ""}),
                         [](const auto& info) {
                           const Ranks& it = info.param;
                           const std::string name = *it.transport == 0 ? "no_dp_ep" : it.transport;
                           return fmt::format("Tp{}Dp{}_{}", it.tp, it.dp, name);
                         });

}  // namespace
}  // namespace rota
