// A decode step takes no memory: operator new of this program counts.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "golden/cases.h"
#include "golden/golden_pack.h"

namespace {

std::atomic<int64_t> allocations{0};

void* counted(std::size_t size, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = alignment == 0 ? std::malloc(size != 0 ? size : 1)
                                : std::aligned_alloc(
                                      alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return counted(size, 0); }
void* operator new[](std::size_t size) { return counted(size, 0); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace rota::golden {
namespace {

std::vector<Case> all_cases() {
  std::vector<Case> cases = pack_cases(Compute::kFloat32);
  for (Case& c : pack_cases(Compute::kBf16)) cases.push_back(std::move(c));
  return cases;
}

class Allocations : public ::testing::TestWithParam<Case> {};

// Pages, batches and logits are the caller's: what is left is the model's own.
TEST_P(Allocations, NoneInADecodeStepNorInAPrefillStep) {
  const auto harness = Harness::load(small_pack_dir(GetParam().pack), GetParam().options());
  ASSERT_TRUE(harness.ok()) << harness.status().message();
  Model& model = (*harness)->model();
  const int64_t vocab = (*harness)->config().vocab;

  std::vector<std::vector<int32_t>> tables;
  for (size_t group = 0; group < model.kv_spec().groups.size(); ++group) {
    tables.push_back({static_cast<int32_t>(group)});
  }
  const std::vector<std::span<const int32_t>> spans(tables.begin(), tables.end());
  const std::vector<int32_t> prompt{5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20};
  std::vector<float> logits(static_cast<size_t>(vocab));

  int64_t position = 0;
  const auto step = [&](std::span<const int32_t> ids) {
    const SequenceChunk chunk{.first_row = 0,
                              .tokens = std::ssize(ids),
                              .first_position = position,
                              .block_tables = spans,
                              .state_slot = 0};
    const int32_t last = static_cast<int32_t>(ids.size()) - 1;
    const StepBatch batch{
        .token_ids = ids, .chunks = std::span(&chunk, 1), .logit_rows = std::span(&last, 1)};
    const int64_t before = allocations.load();
    const Status status = model.forward(batch, (*harness)->cache(),
                                        MatrixView<float>(logits.data(), 1, Extent(vocab), vocab));
    const int64_t taken = allocations.load() - before;
    EXPECT_TRUE(status.ok()) << status.message();
    position += std::ssize(ids);
    return taken;
  };
  EXPECT_EQ(step(prompt), 0) << "prefill";
  for (const int32_t id : {21, 22, 23}) EXPECT_EQ(step(std::span(&id, 1)), 0) << "decode";
}

INSTANTIATE_TEST_SUITE_P(Packs, Allocations, ::testing::ValuesIn(all_cases()),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           return info.param.name();
                         });

// The counter itself works.
TEST(AllocationCounter, SeesAVector) {
  const int64_t before = allocations.load();
  std::vector<int> some(100);
  EXPECT_EQ(some.size(), 100u);
  EXPECT_GT(allocations.load(), before);
}

}  // namespace
}  // namespace rota::golden
