// The names of one expert's linear layers in checkpoints that keep each expert apart.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/model_config.h"

namespace rota {

struct ExpertModules {
  std::string gate;  // empty: the experts are not gated
  std::string up;
  std::string down;
};

// expert: a number, or "{}" for a pattern. Not for gpt_oss, which stacks its experts.
ExpertModules expert_modules(Architecture architecture, int64_t layer, std::string_view expert);

}  // namespace rota
