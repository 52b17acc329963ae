// One life of the engine, whatever its processes are: one on a socket pair, or the ranks of an
// mpirun.
//
//   ROTA_ASSIGN_OR_RETURN(EngineChild child, EngineChild::start(options, stopping));
//   child.socket() ...                          // the engine's messages (wire.h), either way
//   std::string end = child.end(seconds);
//
// Contract: with several ranks start() returns when rank 0 has connected to the socket in the run
// folder; it fails when mpirun ends before that, when nobody comes in time, when a rank gives no
// sign of life, or when stopping() says so. No process and no file of this life outlives the object.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

#include "base/status.h"
#include "supervisor/child_process.h"
#include "supervisor/engine_process.h"
#include "supervisor/rank_output.h"
#include "supervisor/run_folder.h"

namespace rota {

class EngineChild {
 public:
  static Result<EngineChild> start(const EngineProcessOptions& options,
                                   const std::function<bool()>& stopping);

  pid_t pid() const { return process_.pid(); }  // of the process, or of mpirun
  int socket() const { return process_.socket(); }
  // Of several ranks, what they say beside: -1: nothing, or no more.
  int output() const { return ranks_ ? ranks_->from() : -1; }
  void read_output();
  // While they start and load: which rank gives no sign of life; empty: none, or there are none.
  std::string silence(double rank_timeout) const;
  std::string end(double seconds);  // as ChildProcess::end(); ranks may take a little longer

 private:
  explicit EngineChild(ChildProcess process) : process_(std::move(process)) {}
  EngineChild(RunFolder folder, RankOutput ranks, ChildProcess process)
      : folder_(std::move(folder)), ranks_(std::move(ranks)), process_(std::move(process)) {}
  static Result<EngineChild> start_ranks(const EngineProcessOptions& options,
                                         const std::function<bool()>& stopping);

  std::optional<RunFolder> folder_;  // before the process, so that it goes after it
  std::optional<RankOutput> ranks_;
  ChildProcess process_;
};

}  // namespace rota
