// gpt-oss-120b's published config.json as a plan, for tests: no weights, the ref ISA, BF16.
//
//   PlannedModel model;
//   model.parallel.tensor_parallel_size = 8;
//   std::vector<RankPlan> ranks = model.ranks();
#pragma once

#include <string>
#include <vector>

#include "checkpoint/expected_tensors.h"
#include "engine/plan_warnings.h"
#include "engine/rank_plan.h"
#include "engine/roofline.h"

namespace rota::testing {

struct PlannedModel {
  explicit PlannedModel(const std::string& overrides = "")
      : config(read_model_config(std::string(ROTA_SOURCE_DIR) + "/tests/data/gpt-oss-120b",
                                 {.hf_overrides = overrides})
                   .value()),
        census(take_census(expected_tensors(config))) {
    options.isa = "ref";
    options.dtype = DtypeChoice::kBfloat16;
  }

  // Points into this object.
  RankInputs inputs() {
    engine = plan_engine(options, config, CpuFeatures{}).value();
    return {.config = &config,
            .engine = &engine,
            .census = &census,
            .moe = options.moe,
            .parallel = choose_parallel(parallel).value()};
  }
  std::vector<RankPlan> ranks() { return plan_ranks(inputs()).value(); }
  std::vector<PlanWarning> warnings() {
    const RankInputs in = inputs();
    return plan_warnings(in, plan_ranks(in).value());
  }
  RankWork work() {
    const RankInputs in = inputs();
    return rank_work(in, plan_ranks(in).value().front());
  }

  EngineOptions options;
  ParallelOptions parallel;
  ModelConfig config;
  TensorCensus census;
  EnginePlan engine;
};

}  // namespace rota::testing
