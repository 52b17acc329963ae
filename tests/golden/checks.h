// The checks of a whole model against its goldens: what "the same model" means, in float32 and in
// bfloat16. They add test failures that name what differs.
#pragma once

#include <span>
#include <vector>

#include "golden/golden_pack.h"
#include "golden/harness.h"

namespace rota::golden {

// Logits, hidden states and routing of one prompt that was prefilled in one step.
void check_prefill(const GoldenPack& pack, const Prompt& prompt, const StepResult& found);

// All prompts, one step each, then all greedy tokens, the sequences side by side.
void check_pack_in_float32(const GoldenPack& pack, Harness& harness);

// Prompt and greedy tokens of every prompt of a pack, one step each.
std::vector<StepResult> teacher_forced_runs(const GoldenPack& pack, Harness& harness);

// The noise of those runs against float32 runs is that of an honest bfloat16 engine.
void check_bf16_noise(const GoldenPack& pack, std::span<const StepResult> found,
                      std::span<const StepResult> float32);

}  // namespace rota::golden
