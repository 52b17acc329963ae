// The larger goldens of ROTA_REFERENCE_DIR: a real vocabulary, and the real widths of the published
// models with few layers. Without that folder there is nothing here to run.
#include <gtest/gtest.h>

#include <algorithm>

#include "comm/loopback.h"
#include "golden/cases.h"
#include "golden/checks.h"
#include "golden/compare.h"
#include "golden/golden_pack.h"
#include "golden/synth.h"

namespace rota::golden {
namespace {

constexpr double kWideRelativeRms = 1e-4;

std::vector<std::string> if_present(std::vector<std::string> names) {
  return reference_dir().empty() ? std::vector<std::string>() : names;
}

std::string plain_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// The tables that take GB of weights in reasonable time; every one of them with ROTA_FULL=1.
std::vector<const KernelTable*> tables() {
  std::vector<const KernelTable*> all = available_kernels(detect_cpu());
  if (full_grid()) return all;
  // The best one that is no emulation.
  const KernelTable* best = all.front();
  for (const KernelTable* table : all) {
    if (std::string_view(table->name).find("emulated") == std::string_view::npos) best = table;
  }
  return {best};
}

class ReferencePack : public ::testing::TestWithParam<std::string> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ReferencePack);

TEST_P(ReferencePack, Float32CloselyAndBf16WithinItsBounds) {
  const auto pack = GoldenPack::open(reference_dir() + "/models/" + GetParam());
  ASSERT_TRUE(pack.ok()) << pack.status().message();
  const auto arguments = pack_arguments(reference_dir(), GetParam());
  ASSERT_TRUE(arguments.ok()) << arguments.status().message();
  const auto weights = SynthCheckpoint::make(reference_dir(), GetParam(), *arguments);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  for (const KernelTable* kernels : tables()) {
    SCOPED_TRACE(kernels->name);
    HarnessOptions options;
    options.kernels = kernels;
    const auto harness = Harness::load(weights->dir(), options);
    ASSERT_TRUE(harness.ok()) << harness.status().message();
    check_pack_in_float32(*pack, **harness);
    options.compute = Compute::kBf16;
    const auto bf16 = Harness::load(weights->dir(), options);
    ASSERT_TRUE(bf16.ok()) << bf16.status().message();
    check_bf16_noise(*pack, teacher_forced_runs(*pack, **bf16),
                     teacher_forced_runs(*pack, **harness));
  }
}

INSTANTIATE_TEST_SUITE_P(Reference, ReferencePack,
                         ::testing::ValuesIn(if_present({"gptoss-mxfp4-realvocab"})), plain_name);

class Wide : public ::testing::TestWithParam<std::string> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Wide);

void expect_close(const WideGolden& golden, const std::string& name, std::span<const float> found) {
  EXPECT_LE(relative_rms(found, golden.tensors.floats(name)), kWideRelativeRms) << name;
}

// As the goldens are; where a correction bias chooses, slots are in another order.
std::vector<float> by_falling_weight(const StepResult::Routing& routing) {
  std::vector<float> weights = routing.weights;
  for (auto row = weights.begin(); row != weights.end(); row += routing.top_k) {
    std::sort(row, row + routing.top_k, std::greater<>());
  }
  return weights;
}

// Every tensor that is stored of every layer.
void check_wide(const WideGolden& golden, const StepResult& found) {
  for (const auto& [layer, routing] : found.routing()) {
    const std::string router = fmt::format("router.{}", layer);
    const auto ids = golden.tensors.ints(router + ".ids");
    for (int64_t token = 0; token < found.rows(); ++token) {
      ASSERT_EQ(sorted_ids(routing.ids, token, routing.top_k),
                sorted_ids(ids, token, routing.top_k))
          << router << ", token " << token;
    }
    expect_close(golden, router + ".weights", by_falling_weight(routing));
  }
  for (const auto& [block, rows] : found.blocks()) {
    if (golden.tensors.has(block)) expect_close(golden, block, rows);
  }
  for (int layer = 0; golden.tensors.has(fmt::format("layer.{}", layer)); ++layer) {
    expect_close(golden, fmt::format("layer.{}", layer), found.hidden(layer + 1));
  }
  expect_close(golden, "logits", found.all_logits());
}

// Padded runs: the alignments that real kernels ask for.
std::vector<MoeOptions> paddings() {
  std::vector<MoeOptions> list{{}};
  list.push_back({.backend = "", .hidden_alignment = 256, .intermediate_alignment = 128});
  if (full_grid()) {
    list.push_back({.backend = "", .hidden_alignment = 512, .intermediate_alignment = 256});
  }
  return list;
}

TEST_P(Wide, EveryStoredTensorAndPaddedRunsBitForBit) {
  const auto golden = WideGolden::open(reference_dir(), GetParam());
  ASSERT_TRUE(golden.ok()) << golden.status().message();
  const auto weights = SynthCheckpoint::make(reference_dir(), GetParam(), golden->synth_arguments);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  for (const KernelTable* kernels : tables()) {
    SCOPED_TRACE(kernels->name);
    std::vector<float> unpadded;
    for (const MoeOptions& moe : paddings()) {
      HarnessOptions options;
      options.kernels = kernels;
      options.moe = moe;
      options.max_batch_tokens = 16;
      options.pages = 8;
      const auto harness = Harness::load(weights->dir(), options);
      ASSERT_TRUE(harness.ok()) << harness.status().message();
      const auto found = (*harness)->step((*harness)->new_sequence(), golden->ids);
      ASSERT_TRUE(found.ok()) << found.status().message();
      check_wide(*golden, *found);
      const auto logits = found->all_logits();
      if (unpadded.empty()) unpadded.assign(logits.begin(), logits.end());
      EXPECT_TRUE(same_bits(unpadded, logits)) << "hidden alignment " << moe.hidden_alignment;
    }
  }
}

class WideRanks : public Wide {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(WideRanks);

// Heads, groups of Mamba2, experts, shared experts and vocabulary cut, at the widths of the real
// model.
TEST_P(WideRanks, ComputeEveryStoredTensor) {
  const auto golden = WideGolden::open(reference_dir(), GetParam());
  ASSERT_TRUE(golden.ok()) << golden.status().message();
  const auto weights = SynthCheckpoint::make(reference_dir(), GetParam(), golden->synth_arguments);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  for (const auto& [tp, expert_parallel] :
       {std::pair(2, false), {2, true}, {4, false}, {4, true}}) {
    SCOPED_TRACE(fmt::format("tensor parallel {}{}", tp, expert_parallel ? ", experts dealt" : ""));
    LoopbackRanks ranks(tp, {.timeout_seconds = 600, .check_collectives = true});
    ranks.run([&](Communicator& world) {
      HarnessOptions options;
      options.kernels = tables().front();
      options.threads = 1;
      options.max_batch_tokens = 16;
      options.pages = 8;
      options.ranks = {
          .world = &world,
          .tensor = &world,
          .parallel = {
              .shape = {.tp = tp, .expert_parallel = expert_parallel, .rank = world.rank()}}};
      const auto harness = Harness::load(weights->dir(), options);
      ASSERT_TRUE(harness.ok()) << harness.status().message();
      const auto found = (*harness)->step((*harness)->new_sequence(), golden->ids);
      ASSERT_TRUE(found.ok()) << found.status().message();
      check_wide(*golden, *found);
    });
  }
}

std::vector<std::string> cut_over_ranks() {
  std::vector<std::string> names{"nemotron-3-nano-nvfp4"};
  for (const char* more : {"nemotron-3-nano-bf16", "nemotron-3-nano-fp8", "gpt-oss-20b-mxfp4"}) {
    if (full_grid()) names.emplace_back(more);
  }
  return if_present(names);
}

INSTANTIATE_TEST_SUITE_P(Reference, WideRanks, ::testing::ValuesIn(cut_over_ranks()), plain_name);

INSTANTIATE_TEST_SUITE_P(
    Reference, Wide,
    ::testing::ValuesIn(if_present({"gpt-oss-20b-mxfp4", "gpt-oss-120b-mxfp4", "mixtral-8x7b-bf16",
                                    "qwen3-30b-a3b-bf16", "qwen3-30b-a3b-fp8",
                                    "nemotron-3-nano-bf16", "nemotron-3-nano-fp8",
                                    "nemotron-3-nano-nvfp4", "nemotron-3-super-mixed"})),
    plain_name);

}  // namespace
}  // namespace rota::golden
