// The engine of a command that ends by itself: in this process for one rank, else ranks that are
// started and supervised as those of `rota serve` are.
//
//   ROTA_ASSIGN_OR_RETURN(const auto engine, open_engine(options, flags.hostfile));
//   RequestStream stream(*engine);
//
// Contract: the engine is ready when open_engine() returns. A rank that is lost is started again
// with the others, and requests go on where they stopped; no process and no file of the ranks
// outlives the client, nor this process where SIGINT, SIGTERM or SIGHUP ends it: with several ranks
// these are watched for, and blocked in all threads.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "base/status.h"
#include "engine/engine_client.h"
#include "engine/engine_options.h"

namespace rota {

// Faults of the model's folder and of the flags, before a process is started for them; with several
// ranks also what this host lacks (check_launch.h).
Status check_engine(const EngineOptions& options, const std::filesystem::path& model_dir,
                    const std::string& hostfile);

// hostfile: of several ranks, MPI's list of hosts; empty: this one.
Result<std::unique_ptr<EngineClient>> open_engine(const EngineOptions& options,
                                                  const std::string& hostfile);

}  // namespace rota
