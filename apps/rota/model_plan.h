// What `rota plan` knows of a model without its weights, for the two ways to show it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/model_config.h"
#include "engine/engine_plan.h"
#include "engine/plan_warnings.h"
#include "engine/rank_plan.h"
#include "engine/roofline.h"
#include "moe/transfer_size.h"
#include "rota/paint.h"

namespace rota {

struct RooflinePlan {
  int64_t context = 0;       // tokens of the sequence
  int64_t batch = 0;         // sequences that decode at once
  int64_t prompt_chunk = 0;  // tokens of a prompt's step
  RankWork work;             // of the fullest rank, and so are:
  TokenCost alone;
  TokenCost batched;
  TokenCost prompt;
  MachineSpeed speed;  // of one rank; zeros: not known
  bool measured = false;
};

struct ModelPlan {
  std::string name;
  ModelConfig config;
  EnginePlan engine;
  TensorCensus census;
  ParallelChoice parallel;
  std::vector<RankPlan> ranks;
  TransferSize transfer;  // of a mixture layer, from rank 0
  std::vector<PlanWarning> warnings;
  int64_t weight_bytes = 0;    // all tensors
  bool weights_found = false;  // counted from headers; else from config.json
  int64_t mapped_bytes = 0;    // read where they lie in the file, by all ranks together
  int64_t copied_bytes = 0;
  KvSpec kv;           // of the fullest rank
  int ranks_here = 1;  // that share this machine's memory
  KvBudget budget;
  Status no_budget;  // why no KV cache would fit
  RooflinePlan roofline;

  int rank_count() const { return static_cast<int>(ranks.size()); }
};

nlohmann::ordered_json plan_to_json(const ModelPlan& plan);

inline constexpr int kDrawingColumns = 100;
std::string draw_plan(const ModelPlan& plan, const DrawingStyle& style);

// Parts of it: a row's way through a layer; what each rank holds; what a token costs.
std::string draw_widths(const std::vector<WidthStep>& steps, const Painter& paint);
std::string draw_ranks(const ModelPlan& plan, const Painter& paint);
std::string draw_roofline(const ModelPlan& plan, const Painter& paint);

}  // namespace rota
