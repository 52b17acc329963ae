// No heap allocation in a decode step after warm-up: this program counts them.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/engine_core.h"
#include "engine/testing/small_engine.h"

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

}  // namespace
}  // namespace rota
