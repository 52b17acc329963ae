#include "engine/probe.h"

#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "comm/loopback.h"
#include "engine/host_memory.h"
#include "engine/load_agreement.h"
#include "engine/load_engine.h"
#include "engine/probe_exchanges.h"
#include "platform/build_id.h"
#include "platform/topology.h"

namespace rota {

using Json = nlohmann::json;

NLOHMANN_JSON_SERIALIZE_ENUM(MemoryAccess, {{MemoryAccess::kNobodyElse, "nobody else"},
                                            {MemoryAccess::kAllowed, "allowed"},
                                            {MemoryAccess::kForbidden, "forbidden"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankFacts, rank, host, machine, program, build, cores,
                                   machine_cpus, threads, pinned, folder_free_bytes,
                                   shared_memory_free_bytes, neighbour)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ProbeStep, what, fault)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankModel, folder, file_bytes, weight_bytes, copied_bytes,
                                   workspace_bytes, available_bytes, kv_tokens, note)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ProbeReport, ranks, exchanges, model, model_fault)

namespace {

// What a neighbour tries to read.
const uint64_t kProof = 0x726f7461;

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string machine_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id.empty() ? host_name() : id;
}

int64_t free_bytes(const std::string& folder) {
  struct statvfs found{};
  if (::access(folder.c_str(), W_OK | X_OK) != 0 || ::statvfs(folder.c_str(), &found) != 0) {
    return -1;
  }
  return static_cast<int64_t>(found.f_bavail) * static_cast<int64_t>(found.f_frsize);
}

bool can_read(int64_t pid, uint64_t address) {
  uint64_t found = 0;
  iovec local = {&found, sizeof found};
  // An address of another process, which MPI would read from just so.
  void* const there = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  iovec remote = {there, sizeof found};
  return ::process_vm_readv(static_cast<pid_t>(pid), &local, 1, &remote, 1, 0) == sizeof found &&
         found == kProof;
}

// Whether the next rank of this host may be read. Collective.
Result<MemoryAccess> try_neighbour(Communicator& world, const HostRanks& host) {
  struct Place {
    int64_t pid;
    uint64_t address;
  };
  const Place mine{::getpid(), reinterpret_cast<uint64_t>(&kProof)};
  ROTA_ASSIGN_OR_RETURN(const std::vector<Place> all, gather_values(world, mine));
  MemoryAccess found = MemoryAccess::kNobodyElse;
  if (host.count() > 1) {
    const int next = host.ranks[static_cast<size_t>((host.index + 1) % host.count())];
    const Place& place = all[static_cast<size_t>(next)];
    found = can_read(place.pid, place.address) ? MemoryAccess::kAllowed : MemoryAccess::kForbidden;
  }
  ROTA_RETURN_IF_ERROR(world.barrier());  // nobody leaves while it is read
  return found;
}

RankFacts facts_of_this_rank(const EngineOptions& options, int rank, const HostRanks& host,
                             const std::string& run_folder) {
  std::error_code fault;
  RankFacts facts;
  facts.rank = rank;
  facts.host = host_name();
  facts.machine = machine_id();
  facts.program = std::filesystem::read_symlink("/proc/self/exe", fault).string();
  facts.build = build_id();
  facts.cores = static_cast<int>(usable_cpus().one_per_core.size());
  facts.machine_cpus = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  const ThreadTeamOptions team = team_of_rank(options.threads, options.pin, facts.cores, host);
  facts.threads = team.threads > 0 ? team.threads : facts.cores;
  facts.pinned = team.pin && !team.crowded;
  facts.folder_free_bytes = free_bytes(run_folder);
  facts.shared_memory_free_bytes = free_bytes("/dev/shm");
  return facts;
}

RankModel model_of(const LoadCheck& check) {
  return {.folder = check.folder,
          .file_bytes = check.file_bytes,
          .weight_bytes = check.weight_bytes,
          .copied_bytes = check.copied_bytes,
          .workspace_bytes = check.workspace_bytes,
          .available_bytes = check.available_bytes,
          .kv_tokens = check.kv_tokens,
          .note = check.note};
}

Status add_facts(const EngineOptions& options, Communicator& world, const std::string& run_folder,
                 ProbeReport& report) {
  ROTA_ASSIGN_OR_RETURN(const HostRanks host, find_host_ranks(world));
  RankFacts mine = facts_of_this_rank(options, world.rank(), host, run_folder);
  ROTA_ASSIGN_OR_RETURN(mine.neighbour, try_neighbour(world, host));
  ROTA_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                        gather_texts(world, text_of(Json(mine))));
  for (const std::string& text : texts) report.ranks.push_back(Json::parse(text).get<RankFacts>());
  return {};
}

// A model that would not be loaded is a finding; an error is a rank that was lost.
Status add_model(const EngineOptions& options, Communicator& world, ProbeReport& report) {
  const Result<LoadCheck> check = check_load(options, world);
  if (!check.ok()) {
    report.model_fault = check.status().message();
    return check.status().code() == StatusCode::kUnavailable ? check.status() : Status();
  }
  ROTA_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                        gather_texts(world, text_of(Json(model_of(*check)))));
  for (const std::string& text : texts) report.model.push_back(Json::parse(text).get<RankModel>());
  return {};
}

}  // namespace

Result<ProbeReport> probe_ranks(const EngineOptions& options, Communicator& world,
                                const std::string& run_folder) {
  ProbeReport report;
  ROTA_RETURN_IF_ERROR(add_facts(options, world, run_folder, report));
  report.exchanges = probe_exchanges(world);
  const bool reached = report.exchanges.back().fault.empty();
  if (reached && !options.model.empty()) {
    ROTA_RETURN_IF_ERROR(add_model(options, world, report));
  }
  return report;
}

ProbeReport probe_model(const EngineOptions& options) {
  ProbeReport report;
  const Result<LoadCheck> check = check_load(options, loopback());
  if (check.ok()) {
    report.model.push_back(model_of(*check));
  } else {
    report.model_fault = check.status().message();
  }
  return report;
}

nlohmann::json to_json(const ProbeReport& report) { return Json(report); }

Result<ProbeReport> probe_report_from_json(const nlohmann::json& json) {
  try {
    return json.get<ProbeReport>();
  } catch (const Json::exception& fault) {
    return error(StatusCode::kDataLoss, "what the ranks have found: {}", fault.what());
  }
}

}  // namespace rota
