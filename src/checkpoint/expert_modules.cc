#include "checkpoint/expert_modules.h"

#include <fmt/format.h>

namespace rota {

ExpertModules expert_modules(Architecture architecture, int64_t layer, std::string_view expert) {
  if (architecture == Architecture::kNemotronH) {
    const std::string prefix = fmt::format("backbone.layers.{}.mixer.experts.{}.", layer, expert);
    return {.gate = {}, .up = prefix + "up_proj", .down = prefix + "down_proj"};
  }
  const bool mixtral = architecture == Architecture::kMixtral;
  const std::string prefix = fmt::format("model.layers.{}.{}.experts.{}.", layer,
                                         mixtral ? "block_sparse_moe" : "mlp", expert);
  if (mixtral) return {.gate = prefix + "w1", .up = prefix + "w3", .down = prefix + "w2"};
  return {.gate = prefix + "gate_proj", .up = prefix + "up_proj", .down = prefix + "down_proj"};
}

}  // namespace rota
