// What `rota doctor` asks of ranks that run: who and where they are, whether they reach each other
// in every way that tokens may travel, whether they would load the same model alike. Reads no
// weight.
//
//   const Result<ProbeReport> report = probe_ranks(options, *mpi->world(...), run_folder);
// Collective; the report is the same on all ranks. An exchange that failed ends the probe: what
// comes after it in the report was not tried, and the communicator is of no more use.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "engine/engine_options.h"

namespace rota {

enum class MemoryAccess { kAllowed, kForbidden, kNobodyElse };

struct RankFacts {
  int rank = 0;
  std::string host;
  std::string machine;  // the same for ranks that share memory
  std::string program;
  std::string build;
  int cores = 0;         // that this rank may use
  int machine_cpus = 0;  // that its host has
  int threads = 0;       // of a step
  bool pinned = false;
  int64_t folder_free_bytes =
      -1;  // of the run folder, where MPI's shared memory lies; -1: not writable
  int64_t shared_memory_free_bytes = -1;  // of /dev/shm; -1: not writable
  MemoryAccess neighbour =
      MemoryAccess::kNobodyElse;  // may it read that of another rank of its host
};

struct ProbeStep {
  std::string what;   // "all-gather"
  std::string fault;  // empty: what came is what was sent
};

// What a rank says of the model.
struct RankModel {
  std::string folder;
  int64_t file_bytes = 0;
  int64_t weight_bytes = 0;  // as LoadCheck's: of the host
  int64_t copied_bytes = 0;
  int64_t workspace_bytes = 0;
  int64_t available_bytes = 0;
  int64_t kv_tokens = 0;
  std::string note;
};

struct ProbeReport {
  std::vector<RankFacts> ranks;
  std::vector<ProbeStep> exchanges;
  std::vector<RankModel> model;  // one for each rank; empty: no model was given, or
  std::string model_fault;       // why it would not be loaded
};

// run_folder: where MPI's files are. An empty options.model: none.
Result<ProbeReport> probe_ranks(const EngineOptions& options, Communicator& world,
                                const std::string& run_folder);

// The model alone, on one rank: options.parallel is of one.
ProbeReport probe_model(const EngineOptions& options);

nlohmann::json to_json(const ProbeReport& report);
Result<ProbeReport> probe_report_from_json(const nlohmann::json& json);

}  // namespace rota
