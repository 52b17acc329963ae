// No heap allocation in MoeRunner::run() after warm-up: every way to the heap is counted here.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "moe/testing/moe_case.h"

namespace {

std::atomic<int64_t> allocations{0};

void* counted(size_t bytes, size_t alignment) {
  allocations.fetch_add(1);
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* got = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (got == nullptr) std::abort();
  return got;
}

}  // namespace

void* operator new(size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new[](size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<size_t>(alignment));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return counted(bytes, alignof(std::max_align_t));
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return counted(bytes, alignof(std::max_align_t));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { std::free(p); }

namespace rota {
namespace {

class Allocation : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, Allocation,
                         ::testing::Values("gptoss-mxfp4-h160", "gptoss-bf16-h160",
                                           "mixtral-bf16-h72", "qwen3-bf16-h160",
                                           "nemotron-bf16-h336", "nemotron-latent-bf16-h112"),
                         [](const auto& info) {
                           return std::string(info.param).substr(0, 5) + std::to_string(info.index);
                         });

TEST_P(Allocation, NoneInARunAfterTheFirst) {
  const testing::MoeModel model = testing::golden_model(GetParam());
  for (const KernelTable* kernels : available_kernels(detect_cpu())) {
    testing::MoeCase moe(model, 0, {.kernels = kernels, .compute = Compute::kBf16, .threads = 3});
    for (const int64_t tokens : {1, 50}) {
      const std::vector<float> x = testing::random_rows(tokens, model.config.hidden, 1);
      std::vector<float> out(x.size());
      const auto in = MatrixView<const float>(x.data(), tokens, Extent(model.config.hidden),
                                              model.config.hidden);
      const auto to =
          MatrixView<float>(out.data(), tokens, Extent(model.config.hidden), model.config.hidden);
      ASSERT_TRUE(moe.runner().run(moe.layer(), in, to).ok());
      const int64_t before = allocations.load();
      for (int i = 0; i < 5; ++i) ASSERT_TRUE(moe.runner().run(moe.layer(), in, to).ok());
      EXPECT_EQ(allocations.load() - before, 0) << kernels->name << ", " << tokens << " tokens";
    }
  }
}

TEST(Allocation, TheCounterCounts) {
  const int64_t before = allocations.load();
  const auto number = std::make_unique<std::atomic<int>>(3);
  EXPECT_GT(allocations.load(), before) << number->load();
}

}  // namespace
}  // namespace rota
