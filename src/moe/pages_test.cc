// A rank touches its own experts' pages only: while it loads and runs, those of the others may not
// be read (whoever does ends the test with SIGSEGV).
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moe/own_parts.h"
#include "moe/runner.h"
#include "moe/testing/moe_case.h"
#include "moe/testing/synthetic_layer.h"

namespace rota {
namespace {

using testing::SyntheticLayer;

constexpr int64_t kHidden = 256;
constexpr int64_t kIntermediate = 512;

// Pages that lie wholly in a range of a mapping cannot be read as long as the object lives.
class Unreadable {
 public:
  ~Unreadable() {
    for (const std::span<std::byte> range : pages_) mprotect(range.data(), range.size(), PROT_READ);
  }
  void add(std::span<const std::byte> range) {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto address = reinterpret_cast<uintptr_t>(range.data());
    const uintptr_t begin = (address + page - 1) / page * page;
    const uintptr_t end = (address + range.size()) / page * page;
    if (begin >= end) return;
    auto* const first = const_cast<std::byte*>(range.data()) + (begin - address);
    ASSERT_EQ(mprotect(first, end - begin, PROT_NONE), 0);
    pages_.emplace_back(first, end - begin);
    bytes_ += static_cast<int64_t>(end - begin);
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::vector<std::span<std::byte>> pages_;
  int64_t bytes_ = 0;
};

// One expert's part of a tensor: all of it, or a piece of a stack.
struct ExpertPart {
  std::string_view tensor;
  std::span<const std::byte> bytes;
};

std::vector<ExpertPart> parts_of_expert(const SyntheticLayer& layer, int64_t expert) {
  std::vector<ExpertPart> parts;
  const std::string own = fmt::format("experts.{}.", expert);
  for (const TensorInfo& tensor : layer.checkpoint().tensors()) {
    if (!layer.names().stacked) {
      if (tensor.name.starts_with(own)) parts.push_back({tensor.name, tensor.bytes});
    } else if (tensor.name.starts_with("experts.")) {
      const size_t one = tensor.bytes.size() / SyntheticLayer::kExperts;
      parts.push_back({tensor.name, tensor.bytes.subspan(static_cast<size_t>(expert) * one, one)});
    }
  }
  return parts;
}

// A shard's weights of this tensor are neighbouring rows. (Block scales of an expert are looked at
// as a whole, by whichever rank has a shard of it.)
bool shards_are_rows(const SyntheticLayer& layer, std::string_view tensor) {
  if (tensor.ends_with("_scales")) return false;
  const bool down = tensor.find("down") != std::string_view::npos;
  return down == (layer.config().order == WeightOrder::kInOut);
}

void load_and_run(const SyntheticLayer& layer, const WidthPlan& widths, const ExpertMap& map) {
  const KernelTable& kernels = *available_kernels(detect_cpu()).back();
  MoePlan plan = *plan_moe(layer.config(), {},
                           {.cpu = detect_cpu(), .isa = kernels.isa, .compute = Compute::kFloat32});
  plan.widths = widths;
  const auto loaded = MoeLayer::load(
      layer.checkpoint(), layer.names(),
      {.config = &plan.config, .plan = &plan.widths, .map = map, .compute = Compute::kFloat32});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  constexpr int64_t kTokens = 9;
  ThreadTeam team({.threads = 1, .pin = false});
  ASSERT_TRUE(loaded->verify_all(team).ok());
  MoeRunner runner = *MoeRunner::make(plan, kernels, team, kTokens);
  const std::vector<float> x = testing::random_rows(kTokens, kHidden, 1);
  std::vector<float> out(x.size(), NAN);
  const Status status =
      runner.run(*loaded, MatrixView<const float>(x.data(), kTokens, Extent(kHidden), kHidden),
                 MatrixView<float>(out.data(), kTokens, Extent(kHidden), kHidden));
  ASSERT_TRUE(status.ok()) << status.message();
  for (const float value : out) ASSERT_TRUE(std::isfinite(value));
}

WidthPlan plan_of(const SyntheticLayer& layer, int64_t alignment, ParallelShape parallel) {
  const KernelTable& kernels = *available_kernels(detect_cpu()).back();
  const MoePlan plan = *plan_moe(
      layer.config(), {}, {.cpu = detect_cpu(), .isa = kernels.isa, .compute = Compute::kFloat32});
  return *plan_widths({.moe = layer.config(),
                       .experts = plan.choice.backend,
                       .parallel = parallel,
                       .hidden_alignment = alignment,
                       .intermediate_alignment = alignment});
}

class Pages : public ::testing::TestWithParam<size_t> {
 protected:
  Pages() : layer_(testing::kLayerKinds[GetParam()], {kHidden, kIntermediate}) {}
  SyntheticLayer layer_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, Pages, ::testing::Range(size_t{0}, testing::kLayerKinds.size()),
                         [](const auto& info) { return testing::kLayerKinds[info.param].name; });

TEST_P(Pages, AnExpertParallelRankTouchesItsExpertsOnly) {
  for (const ExpertPlacement placement : {ExpertPlacement::kLinear, ExpertPlacement::kRoundRobin}) {
    for (const int ranks : {4, 8}) {
      for (int rank = 0; rank < ranks; ++rank) {
        const ExpertMap map = *ExpertMap::make(SyntheticLayer::kExperts, ranks, rank, placement);
        Unreadable others;
        for (int64_t e = 0; e < SyntheticLayer::kExperts; ++e) {
          if (map.local(e)) continue;
          for (const ExpertPart& part : parts_of_expert(layer_, e)) others.add(part.bytes);
        }
        ASSERT_GT(others.bytes(), 0);
        const Status read = layer_.checkpoint().warm({.own = own_parts(map)});
        EXPECT_TRUE(read.ok()) << read.message();
        for (const int64_t alignment : {0, 768}) {
          load_and_run(layer_, plan_of(layer_, alignment, {}), map);
        }
      }
    }
  }
}

TEST_P(Pages, ATensorParallelRankTouchesItsRowsOnly) {
  constexpr int kShards = 4;
  for (int shard = 0; shard < kShards; ++shard) {
    Unreadable others;
    for (int64_t e = 0; e < SyntheticLayer::kExperts; ++e) {
      for (const ExpertPart& part : parts_of_expert(layer_, e)) {
        const size_t one = part.bytes.size() / kShards;
        for (size_t other = 0; other < kShards && shards_are_rows(layer_, part.tensor); ++other) {
          if (other != static_cast<size_t>(shard)) others.add(part.bytes.subspan(other * one, one));
        }
      }
    }
    ASSERT_GT(others.bytes(), 0);
    for (const int64_t alignment : {0, 768}) {
      load_and_run(layer_, plan_of(layer_, alignment, {.tp = kShards, .rank = shard}),
                   ExpertMap::whole(SyntheticLayer::kExperts));
    }
  }
}

}  // namespace
}  // namespace rota
