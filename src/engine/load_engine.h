// From options to a model that is ready to step: checks, opens the checkpoint, reads the weights
// ahead with a progress bar, builds the model, sizes the KV cache, and logs what was chosen and why
// (R9).
//
//   ROTA_ASSIGN_OR_RETURN(LoadedEngine loaded, load_engine(options));
//   loaded.model->forward(batch, *loaded.cache, logits);
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/generation_config.h"
#include "checkpoint/locate.h"
#include "checkpoint/model_config.h"
#include "engine/engine_client.h"
#include "engine/engine_options.h"
#include "engine/memory_profile.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "platform/cpu.h"
#include "platform/thread_team.h"

namespace rota {

// Everything a stepping engine owns. Members are destroyed from the last to the first: the model
// before the checkpoint and the team that it borrows.
struct LoadedEngine {
  EngineOptions options;  // as resolved: max_model_len is the one that is used
  ModelLocation location;
  ModelConfig config;
  GenerationConfig generation;
  CpuFeatures cpu;
  Isa isa = Isa::kRef;
  std::unique_ptr<ThreadTeam> team;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Model> model;
  KvBudget kv;
  std::unique_ptr<KvCache> cache;
  int64_t max_logit_rows = 0;  // the most rows of logits that one step may ask for

  EngineInfo info() const;
};

Result<LoadedEngine> load_engine(const EngineOptions& options);

// What the authors of the model suggest, neutral elsewhere; and the same as a line for the log.
SamplingParams default_sampling(const GenerationConfig& generation);
std::string describe_sampling(const SamplingParams& params);

}  // namespace rota
