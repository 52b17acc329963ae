// Everything that is decided about a model's mixture layers before a weight is read: backend,
// prepare/finalize, widths, bytes. Pure: `rota plan` prints it, the model is built from it.
//
//   ROTA_ASSIGN_OR_RETURN(MoePlan plan, plan_moe(moe_config(config), options, context));
//   log::info("mixture layers: {}", describe(plan));
#pragma once

#include <string>

#include "base/status.h"
#include "moe/config.h"
#include "moe/experts.h"
#include "moe/options.h"
#include "moe/select_backend.h"
#include "moe/width_plan.h"

namespace rota {

struct MoePlan {
  MoeConfig config;
  BackendContext context;
  BackendChoice choice;
  Transport transport = Transport::kNoDpEp;
  WidthPlan widths;
  ExpertBytes layer_bytes;  // of one layer
};

Result<MoePlan> plan_moe(const MoeConfig& config, const MoeOptions& options,
                         const BackendContext& context);

// "cpu_mxfp4_bf16, prepare/finalize no_dp_ep, hidden 2880 -> 3072, intermediate 2880; ..."
std::string describe(const MoePlan& plan);

}  // namespace rota
