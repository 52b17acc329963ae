// One life of the engine, whatever its processes are: one on a socket pair, or the ranks of an
// mpirun.
//
//   ROTA_ASSIGN_OR_RETURN(EngineChild child, EngineChild::start(options, stopping));
//   child.socket() ...                          // the engine's messages (wire.h), either way
//   std::string end = child.end(seconds);
//
// Contract: with several ranks start() returns when rank 0 has connected to the socket in the run
// folder; it fails when mpirun ends before that, when nobody comes in time, or when stopping() says
// so. No process and no file of this life outlives the object.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

#include "base/status.h"
#include "supervisor/child_process.h"
#include "supervisor/engine_process.h"
#include "supervisor/run_folder.h"

namespace rota {

class EngineChild {
 public:
  static Result<EngineChild> start(const EngineProcessOptions& options,
                                   const std::function<bool()>& stopping);

  pid_t pid() const { return process_.pid(); }  // of the process, or of mpirun
  int socket() const { return process_.socket(); }
  std::string end(double seconds);  // as ChildProcess::end(); ranks may take a little longer

 private:
  EngineChild(std::optional<RunFolder> folder, ChildProcess process)
      : folder_(std::move(folder)), process_(std::move(process)) {}
  static Result<EngineChild> start_ranks(const EngineProcessOptions& options,
                                         const std::function<bool()>& stopping);

  std::optional<RunFolder> folder_;  // before the process, so that it goes after it
  ChildProcess process_;
};

}  // namespace rota
