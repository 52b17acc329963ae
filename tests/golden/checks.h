// The checks of a whole model in float32 against its goldens: what "the same model" means.
#pragma once

#include <string>

#include "golden/golden_pack.h"
#include "golden/harness.h"

namespace rota::golden {

// Logits, hidden states and routing of one prompt, prefilled in one step into `sequence`; adds test
// failures that name what differs.
void check_prefill(const GoldenPack& pack, const Prompt& prompt, const StepResult& found);

// All prompts, one step each, then all greedy tokens, the sequences side by side.
void check_pack_in_float32(const GoldenPack& pack, Harness& harness);

}  // namespace rota::golden
