#include "golden/checks.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "golden/compare.h"

namespace rota::golden {
namespace {

constexpr double kHiddenRelativeRms = 1e-4;
constexpr double kRouterWeight = 1e-4;  // absolute; weights sum to 1

// Rows of the prompt that a stored tensor of `rows` rows is of: all, or the last one.
std::span<const float> tail_rows(std::span<const float> found, int64_t rows, int64_t width) {
  return found.last(static_cast<size_t>(rows * width));
}

void check_logits(const GoldenPack& pack, const Prompt& prompt, const StepResult& found) {
  const auto& tensors = pack.tensors;
  EXPECT_LE(max_abs_difference(found.logits(found.rows() - 1),
                               tensors.floats(prompt.name + ".logits_last")),
            pack.fp32_logits_max_abs);
  if (tensors.has(prompt.name + ".logits")) {
    EXPECT_LE(max_abs_difference(found.all_logits(), tensors.floats(prompt.name + ".logits")),
              pack.fp32_logits_max_abs);
  }
  const auto best = tensors.ints(prompt.name + ".argmax");
  for (int64_t row = 0; row < found.rows(); ++row) {
    const auto logits = found.logits(row);
    const float expected = logits[static_cast<size_t>(best[static_cast<size_t>(row)])];
    EXPECT_LE(logits[static_cast<size_t>(argmax(logits))] - expected, 2 * pack.fp32_logits_max_abs)
        << "most likely token at position " << row;
  }
}

void check_hidden(const GoldenPack& pack, const Prompt& prompt, const StepResult& found) {
  const std::string name = prompt.name + ".hidden";
  const auto& shape = pack.tensors.shape(name);  // [L + 2, T or 1, H]
  const auto expected = pack.tensors.floats(name);
  const auto size = static_cast<size_t>(shape[1] * shape[2]);
  for (int64_t index = 0; index < shape[0]; ++index) {
    EXPECT_LE(relative_rms(tail_rows(found.hidden(static_cast<int>(index)), shape[1], shape[2]),
                           expected.subspan(static_cast<size_t>(index) * size, size)),
              kHiddenRelativeRms)
        << "hidden state " << index;
  }
}

float weight_of(std::span<const int32_t> ids, std::span<const float> weights, int32_t id) {
  const auto at = std::find(ids.begin(), ids.end(), id) - ids.begin();
  return weights[static_cast<size_t>(at)];
}

void check_router_weights(const StepResult::Routing& found, std::span<const int32_t> ids,
                          std::span<const float> weights) {
  const auto k = static_cast<size_t>(found.top_k);
  for (size_t first = 0; first < ids.size(); first += k) {
    const auto found_ids = std::span(found.ids).subspan(first, k);
    const auto found_weights = std::span(found.weights).subspan(first, k);
    for (size_t slot = first; slot < first + k; ++slot) {
      EXPECT_NEAR(weight_of(found_ids, found_weights, ids[slot]), weights[slot], kRouterWeight)
          << "token " << first / k << ", expert " << ids[slot];
    }
  }
}

void check_routing(const GoldenPack& pack, const Prompt& prompt, const StepResult& found) {
  for (const auto& [layer, routing] : found.routing()) {
    const std::string name = fmt::format("{}.router.{}", prompt.name, layer);
    SCOPED_TRACE(name);
    const auto ids = pack.tensors.ints(name + ".ids");
    ASSERT_EQ(ids.size(), routing.ids.size());
    for (int64_t token = 0; token < found.rows(); ++token) {
      ASSERT_EQ(sorted_ids(routing.ids, token, routing.top_k),
                sorted_ids(ids, token, routing.top_k))
          << "token " << token;
    }
    if (!pack.tensors.has(name + ".weights")) continue;
    check_router_weights(routing, ids, pack.tensors.floats(name + ".weights"));
  }
}

// What went into and came out of the mixers whose rows are stored.
void check_blocks(const GoldenPack& pack, const Prompt& prompt, const StepResult& found) {
  for (const auto& [block, rows] : found.blocks()) {
    const std::string name = prompt.name + "." + block;
    if (!pack.tensors.has(name)) continue;
    EXPECT_LE(relative_rms(rows, pack.tensors.floats(name)), kHiddenRelativeRms) << name;
  }
}

}  // namespace

void check_prefill(const GoldenPack& pack, const Prompt& prompt, const StepResult& found) {
  SCOPED_TRACE(prompt.name);
  ASSERT_EQ(found.rows(), std::ssize(prompt.ids));
  check_logits(pack, prompt, found);
  check_hidden(pack, prompt, found);
  check_routing(pack, prompt, found);
  check_blocks(pack, prompt, found);
}

void check_pack_in_float32(const GoldenPack& pack, Harness& harness) {
  std::vector<int> sequences;
  for (const Prompt& prompt : pack.prompts) {
    sequences.push_back(harness.new_sequence());
    const auto found = harness.step(sequences.back(), prompt.ids);
    ASSERT_TRUE(found.ok()) << found.status().message();
    check_prefill(pack, prompt, *found);
    EXPECT_EQ(argmax(found->logits(found->rows() - 1)), prompt.greedy.front()) << prompt.name;
  }
  const size_t steps = pack.prompts.front().greedy.size();
  for (size_t step = 1; step < steps; ++step) {
    std::vector<Harness::Piece> pieces;
    for (size_t i = 0; i < sequences.size(); ++i) {
      pieces.push_back({sequences[i], std::span(pack.prompts[i].greedy).subspan(step - 1, 1)});
    }
    const auto found = harness.step(pieces);
    ASSERT_TRUE(found.ok()) << found.status().message();
    for (size_t i = 0; i < sequences.size(); ++i) {
      EXPECT_EQ(argmax(found->logits(static_cast<int64_t>(i))), pack.prompts[i].greedy[step])
          << pack.prompts[i].name << ", greedy token " << step;
    }
  }
  for (const int sequence : sequences) harness.end_sequence(sequence);
}

std::vector<StepResult> teacher_forced_runs(const GoldenPack& pack, Harness& harness) {
  std::vector<StepResult> runs;
  for (const Prompt& prompt : pack.prompts) {
    const int sequence = harness.new_sequence();
    auto run = harness.step(sequence, prompt.teacher_forced());
    ROTA_CHECK(run.ok(), run.status().message());
    runs.push_back(std::move(run).value());
    harness.end_sequence(sequence);
  }
  return runs;
}

void check_bf16_noise(const GoldenPack& pack, std::span<const StepResult> found,
                      std::span<const StepResult> float32) {
  Noise noise;
  for (size_t i = 0; i < found.size(); ++i) noise.add(found[i], float32[i]);
  EXPECT_LE(noise.median_of_max_abs(), pack.bf16.median_of_max_abs);
  EXPECT_LE(noise.max_abs_where_all_router_ids_agree(),
            pack.bf16.max_abs_where_all_router_ids_agree);
  EXPECT_LE(noise.kl_mean(), pack.bf16.kl_mean);
  EXPECT_GE(noise.top1_agreement(), pack.bf16.top1_agreement);
  EXPECT_LE(noise.router_flip_rate(), pack.bf16.router_flip_rate);
  // It is bfloat16 at all: a float32 run would be a thousand times closer.
  EXPECT_GT(noise.median_of_max_abs(), 20 * pack.fp32_logits_max_abs);
}

}  // namespace rota::golden
