// No heap allocation in MoeRunner::run() after warm-up: every way to the heap is counted here.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "moe/testing/moe_case.h"
#include "moe/testing/rank_layers.h"

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

// Ranks as threads: with each transport, tokens that come and go, after a first round of the same.
TEST(Allocation, NoneOverRanksAfterTheFirstStep) {
  constexpr int kRanks = 3;
  const testing::SyntheticLayer layer(testing::kLayerKinds[0], {.hidden = 160, .intermediate = 96});
  for (const Transport transport :
       {Transport::kAllgatherReducescatter, Transport::kAlltoallv, Transport::kLowLatency}) {
    for (const bool whole : {true, false}) {
      if (!whole && transport != Transport::kAllgatherReducescatter) continue;
      testing::RankLayers ranks(layer, {.shape = {.dp = kRanks, .expert_parallel = whole},
                                        .transport = transport,
                                        .kernels = available_kernels(detect_cpu()).back(),
                                        .compute = Compute::kBf16,
                                        .max_workspace = Bytes{1 << 20},
                                        .check_collectives = false});
      int64_t found = -1;
      ranks.each([&](testing::RankLayers::Rank& rank) {
        const std::vector<float> x = testing::random_rows(rank.index() == 1 ? 0 : 20, 160, 1);
        std::vector<float> out(x.size());
        const std::vector<int64_t> tokens = {20, 0, 20};
        const auto steps = [&] {
          for (int i = 0; i < 3; ++i) ROTA_CHECK(rank.step(tokens, x, out).ok(), "a step");
          ROTA_CHECK(rank.all().barrier().ok(), "a barrier");
        };
        steps();
        const int64_t before = allocations.load();
        ROTA_CHECK(rank.all().barrier().ok(), "all have looked");
        steps();
        if (rank.index() == 0) found = allocations.load() - before;
        ROTA_CHECK(rank.all().barrier().ok(), "all are done");
      });
      EXPECT_EQ(found, 0) << to_string(transport) << (whole ? "" : ", cut experts");
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
