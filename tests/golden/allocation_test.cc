// A decode step takes no memory: operator new of this program counts.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "comm/loopback.h"
#include "golden/cases.h"
#include "golden/golden_pack.h"
#include "platform/cpu.h"

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

// One sequence of a model, in steps that ask for the last token's logits. Pages, batches and logits
// are taken beforehand: what is left is the model's own.
class Steps {
 public:
  explicit Steps(Harness& harness)
      : harness_(harness), logits_(static_cast<size_t>(harness.config().vocab)) {
    for (size_t group = 0; group < harness.model().kv_spec().groups.size(); ++group) {
      tables_.push_back({static_cast<int32_t>(group)});
    }
    spans_.assign(tables_.begin(), tables_.end());
  }

  // Allocations of the whole program meanwhile.
  int64_t step(std::span<const int32_t> ids) {
    const int64_t vocab = std::ssize(logits_);
    const SequenceChunk chunk{.first_row = 0,
                              .tokens = std::ssize(ids),
                              .first_position = position_,
                              .block_tables = spans_,
                              .state_slot = 0};
    const int32_t last = static_cast<int32_t>(ids.size()) - 1;
    const StepBatch batch{
        .token_ids = ids, .chunks = std::span(&chunk, 1), .logit_rows = std::span(&last, 1)};
    const int64_t before = allocations.load();
    const Status status = harness_.model().forward(
        batch, harness_.cache(), MatrixView<float>(logits_.data(), 1, Extent(vocab), vocab));
    const int64_t taken = allocations.load() - before;
    EXPECT_TRUE(status.ok()) << status.message();
    position_ += std::ssize(ids);
    return taken;
  }

 private:
  Harness& harness_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<std::span<const int32_t>> spans_;
  std::vector<float> logits_;
  int64_t position_ = 0;
};

const std::vector<int32_t> kPrompt{5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20};

class Allocations : public ::testing::TestWithParam<Case> {};

TEST_P(Allocations, NoneInADecodeStepNorInAPrefillStep) {
  const auto harness = Harness::load(small_pack_dir(GetParam().pack), GetParam().options());
  ASSERT_TRUE(harness.ok()) << harness.status().message();
  Steps steps(**harness);
  EXPECT_EQ(steps.step(kPrompt), 0) << "prefill";
  for (const int32_t id : {21, 22, 23}) EXPECT_EQ(steps.step(std::span(&id, 1)), 0) << "decode";
}

INSTANTIATE_TEST_SUITE_P(Packs, Allocations, ::testing::ValuesIn(all_cases()),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           return info.param.name();
                         });

// Communicators take memory for a shape that they see for the first time.
TEST(AllocationsOfRanks, NoneInAStepOfAShapeThatWasSeen) {
  for (const char* pack : {"gptoss-mxfp4-h160", "nemotron-latent-bf16-h112"}) {
    LoopbackRanks ranks(2);
    ranks.run([&](Communicator& rank) {
      const MoeParallel parallel{.shape = {.tp = 2, .rank = rank.rank()}};
      const auto harness = Harness::load(
          small_pack_dir(pack), {.kernels = available_kernels(detect_cpu()).back(),
                                 .ranks = {.world = &rank, .tensor = &rank, .parallel = parallel}});
      ASSERT_TRUE(harness.ok()) << harness.status().message();
      Steps steps(**harness);
      const auto both_shapes = [&] {
        const int32_t id = 21;
        ASSERT_TRUE(rank.barrier().ok());
        steps.step(kPrompt);
        steps.step(std::span(&id, 1));
        ASSERT_TRUE(rank.barrier().ok());
      };
      both_shapes();
      const int64_t before = allocations.load();
      both_shapes();
      both_shapes();
      EXPECT_EQ(allocations.load() - before, 0) << pack << ", rank " << rank.rank();
      static_cast<void>(rank.barrier());  // before anyone ends
    });
  }
}

// The counter itself works.
TEST(AllocationCounter, SeesAVector) {
  const int64_t before = allocations.load();
  std::vector<int> some(100);
  EXPECT_EQ(some.size(), 100u);
  EXPECT_GT(allocations.load(), before);
}

}  // namespace
}  // namespace rota::golden
