// From options to a model that is ready to step: checks, opens the checkpoint, reads the weights
// ahead with a progress bar, builds the model, sizes the KV cache, and logs what was chosen and why
// (R9).
//
//   ROTA_ASSIGN_OR_RETURN(LoadedEngine loaded, load_engine(options));
//   loaded.model->forward(batch, *loaded.cache, logits);
//
// Ranks that share a model load it together, each its own experts and its own part of what is cut.
// They refuse if they were given different options, files or builds, and if one of them fails all
// do. All block scales of a rank's experts are checked before it is ready, whatever
// --verify-weights says: a step that met damaged ones would fail on one rank alone, and leave the
// others in the middle of theirs. Limits that all must share (pages, sequences, lengths) are the
// least that one of them can afford.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/generation_config.h"
#include "checkpoint/locate.h"
#include "checkpoint/model_config.h"
#include "comm/communicator.h"
#include "engine/engine_client.h"
#include "engine/engine_options.h"
#include "engine/engine_topology.h"
#include "engine/load_agreement.h"
#include "engine/memory_profile.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "model/ranks.h"
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
  RankContext ranks;
  std::unique_ptr<Communicator> tensor;  // that of `ranks`, where it is cut from the world
  HostRanks host;
  EngineTopology topology;
  uint64_t hash = 0;  // of what the ranks have agreed on; 0: one rank
  std::unique_ptr<ThreadTeam> team;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Model> model;
  KvBudget kv;
  std::unique_ptr<KvCache> cache;
  int64_t max_logit_rows = 0;  // the most rows of logits that one step may ask for

  EngineInfo info() const;  // of all ranks together
};

// Collective over `world`, which outlives what is loaded; its ranks are those of options.parallel.
Result<LoadedEngine> load_engine(const EngineOptions& options, Communicator& world = loopback());

// What load_engine() finds out before it reads a weight. Bytes are of this rank's host, all of its
// ranks together.
struct LoadCheck {
  int ranks_of_host = 1;
  int threads = 0;           // of this rank
  std::vector<int> cpus;     // that they are pinned to; empty: not pinned
  std::string folder;        // of the model
  int64_t file_bytes = 0;    // all tensors
  int64_t weight_bytes = 0;  // that the host's ranks map, each page once
  int64_t copied_bytes = 0;
  int64_t workspace_bytes = 0;
  int64_t available_bytes = 0;
  int64_t kv_tokens = 0;  // that fit into this rank's cache
  std::string note;       // why a limit would be lowered, or weights paged; or empty
};

// Collective. All checks of load_engine(), agreement of the ranks among them, and then no more.
Result<LoadCheck> check_load(const EngineOptions& options, Communicator& world);

// What the authors of the model suggest, neutral elsewhere; and the same as a line for the log.
SamplingParams default_sampling(const GenerationConfig& generation);
std::string describe_sampling(const SamplingParams& params);

}  // namespace rota
