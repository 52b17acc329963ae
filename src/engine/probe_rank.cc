#include "engine/probe_rank.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "comm/mpi.h"
#include "engine/load_agreement.h"
#include "engine/probe.h"
#include "platform/build_id.h"

namespace rota {
namespace {

using Json = nlohmann::json;

// In one write: lines of several ranks come together in one stream.
void say(const Json& json) {
  const std::string line =
      kProbeLine + json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

int number_of_this_rank() {
  const char* text = std::getenv("OMPI_COMM_WORLD_RANK");
  return text == nullptr ? 0 : std::atoi(text);
}

Status probe(const EngineOptions& options, const std::string& run_folder) {
  ROTA_ASSIGN_OR_RETURN(const std::unique_ptr<MpiRanks> mpi, MpiRanks::start());
  ROTA_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> world,
                        mpi->world({.timeout_seconds = options.parallel.rank_timeout,
                                    .check_collectives = options.parallel.check_collectives}));
  say({{"met", world->rank()}});
  ROTA_ASSIGN_OR_RETURN(const ProbeReport report, probe_ranks(options, *world, run_folder));
  if (world->rank() == 0) say({{"report", to_json(report)}});
  return {};
}

}  // namespace

int run_probe_rank(const std::string& options_json, const std::string& run_folder) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  log::set_level(log::Level::kError);
  say({{"here", number_of_this_rank()}, {"host", host_name()}, {"build", build_id()}});
  if (options_json == "hello") return 0;
  const Result<EngineOptions> options =
      engine_options_from_json(Json::parse(options_json, nullptr, false));
  const Status status = options.ok() ? probe(*options, run_folder) : options.status();
  if (status.ok()) return 0;
  say({{"fault", status.message()}, {"rank", number_of_this_rank()}});
  std::fflush(nullptr);
  std::_Exit(1);  // nothing is unwound: MPI would wait for the others
}

}  // namespace rota
