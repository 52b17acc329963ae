#include "server/counted_allocations.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <string>
#include <thread>

namespace {
thread_local size_t bytes = 0;
}  // namespace

void* operator new(size_t size) {
  bytes += size;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace rota::test {

size_t bytes_allocated() { return bytes; }

TEST(CountedAllocations, AreThoseOfTheThread) {
  const size_t before = bytes_allocated();
  const std::string mine(1000, 'a');
  EXPECT_GE(bytes_allocated() - before, mine.size());
  const size_t after = bytes_allocated();
  std::thread([] { EXPECT_EQ(std::string(1'000'000, 'a').size(), 1'000'000u); }).join();
  EXPECT_LT(bytes_allocated() - after, 1'000'000u);
}

}  // namespace rota::test
