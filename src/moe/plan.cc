#include "moe/plan.h"

#include <fmt/format.h>

#include "moe/routing.h"

namespace rota {

Result<MoePlan> plan_moe(const MoeConfig& config, const MoeOptions& options,
                         const BackendContext& context) {
  ROTA_RETURN_IF_ERROR(check_router(config.router));
  MoePlan plan;
  plan.config = config;
  plan.context = context;
  ROTA_ASSIGN_OR_RETURN(plan.choice, select_backend(config, context, options.backend));
  ROTA_ASSIGN_OR_RETURN(plan.widths,
                        plan_widths({.moe = config,
                                     .experts = plan.choice.backend,
                                     .transport = plan.transport,
                                     .parallel = {},
                                     .hidden_alignment = options.hidden_alignment,
                                     .intermediate_alignment = options.intermediate_alignment}));
  plan.layer_bytes = expert_bytes(config, plan.widths, config.router.experts);
  return plan;
}

std::string describe(const MoePlan& plan) {
  std::string text = fmt::format(
      "experts {}, prepare/finalize {}, hidden {}, intermediate {}", plan.choice.describe(),
      to_string(plan.transport), to_string(plan.widths.experts_in),
      plan.widths.intermediate ? to_string(*plan.widths.intermediate) : "none (an empty shard)");
  if (plan.config.latent > 0) {
    text += fmt::format(", latent in a model of {}", plan.config.hidden);
  }
  if (plan.config.shared_intermediate > 0) {
    text += fmt::format(", shared expert {}", plan.config.shared_intermediate);
  }
  return text;
}

}  // namespace rota
