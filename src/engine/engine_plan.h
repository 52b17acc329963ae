// What the options mean for a model on this machine, before a weight is read: ISA, precision,
// mixture layers, KV layout, copies, memory. Pure but for the memory that is free now: `rota plan`
// prints it, `rota serve` refuses by it before a process is started, load_engine() before it reads.
//
//   ROTA_ASSIGN_OR_RETURN(EnginePlan plan, plan_engine(options, config, detect_cpu()));
//   ROTA_ASSIGN_OR_RETURN(KvBudget kv, plan_kv_budget(memory_profile(plan, options, config, weight_bytes)));
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "checkpoint/model_config.h"
#include "engine/engine_options.h"
#include "engine/memory_profile.h"
#include "model/model.h"
#include "moe/plan.h"
#include "platform/cpu.h"

namespace rota {

struct EnginePlan {
  Isa isa = Isa::kRef;
  Compute compute = Compute::kBf16;
  MoePlan moe;
  KvSpec kv;                    // of one rank
  int64_t copied_bytes = 0;     // padded copies of the experts, all layers
  int64_t mapped_instead = 0;   // bytes of the file that are not read because they were copied
  std::string copied_because;   // the flags, or the backend, that want them
  int64_t workspace_bytes = 0;  // of a step, with its logits; 0 until plan_step_memory() was asked
};

// kInvalidArgument names what these flags cannot be with this model, the tensor-parallel size too.
Result<EnginePlan> plan_engine(const EngineOptions& options, const ModelConfig& config,
                               const CpuFeatures& cpu);

// What a step takes beside weights and cache, on the first of the ranks. Takes none of it; starts
// as many threads as the options say, for a moment.
Result<int64_t> plan_step_memory(const EngineOptions& options, const ModelConfig& config, Isa isa);

// What load_engine() makes a model with.
ModelOptions model_options(const EngineOptions& options, const ModelConfig& config, Isa isa);
int64_t logits_bytes(const EngineOptions& options, const ModelConfig& config);

// The budget's question with what is known now. Points into the plan.
MemoryProfile memory_profile(const EnginePlan& plan, const EngineOptions& options,
                             const ModelConfig& config, int64_t weight_bytes);

// --isa, or ROTA_ISA, or the best; a refusal names what was given.
Result<Isa> isa_of(const EngineOptions& options, const CpuFeatures& cpu);

Compute compute_of(DtypeChoice choice, const ModelConfig& config);

}  // namespace rota
