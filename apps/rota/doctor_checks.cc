#include "rota/doctor_checks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/format_bytes.h"

namespace rota {
namespace {

constexpr int64_t kLittleSharedMemory = 64LL << 20;  // for each rank: what windows and MPI take

// Ranks that share a machine, by what its first rank calls it.
std::map<std::string, std::vector<const RankFacts*>> by_machine(const ProbeReport& report) {
  std::map<std::string, std::vector<const RankFacts*>> machines;
  for (const RankFacts& it : report.ranks) machines[it.machine].push_back(&it);
  return machines;
}

// The last line that is no frame: MPI's own words are boxed.
std::string last_words(const std::string& said) {
  std::string words;
  size_t begin = 0;
  while (begin < said.size()) {
    const size_t end = std::min(said.find('\n', begin), said.size());
    const std::string line = said.substr(begin, end - begin);
    const bool frame = line.find_first_not_of("- \t") == std::string::npos;
    if (!frame && words.size() < 400) words += (words.empty() ? "" : " ") + line;
    begin = end + 1;
  }
  return words;
}

std::string with_words(const ProbeAnswer& answer) {
  const std::string words = last_words(answer.said);
  return words.empty() ? answer.fault : fmt::format("{}: {}", answer.fault, words);
}

Check check_start(const ProbeAnswer& answer, int ranks) {
  Check check{.name = "start"};
  if (answer.report) {
    check.found = fmt::format("{} ranks started by mpirun have met and answered", ranks);
    return check;
  }
  check.verdict = Verdict::kProblem;
  check.found = with_words(answer);
  check.advice =
      "hosts must reach one another on every port, and have this program at the same path; "
      "OMPI_MCA_btl_tcp_if_include=IFACE and OMPI_MCA_oob_tcp_if_include=IFACE name the network";
  return check;
}

std::set<std::string> needed_kinds(const ParallelChoice& parallel) {
  std::set<std::string> needed;
  if (parallel.shape.tp > 1) needed.insert("sum");
  if (parallel.transport == Transport::kAllgatherReducescatter) needed.insert("all-gather");
  if (parallel.transport == Transport::kAlltoallv) needed.insert("all-to-all");
  if (parallel.transport == Transport::kLowLatency) needed.insert("one-sided windows");
  return needed;
}

Check check_exchanges(const ProbeReport& report, const ParallelChoice& parallel) {
  std::vector<std::string> right;
  for (const ProbeStep& it : report.exchanges) {
    if (it.fault.empty()) {
      right.push_back(it.what);
      continue;
    }
    const bool needed = needed_kinds(parallel).contains(it.what);
    return {.name = "exchanges",
            .verdict = needed ? Verdict::kProblem : Verdict::kWarning,
            .found = fmt::format("{}: {}", it.what, it.fault),
            .advice = needed
                          ? "choose another --all2all-backend, or see that nothing stands between "
                            "the hosts"
                          : "not used with these flags; leave OMPI_MCA_osc and OMPI_MCA_pml unset"};
  }
  return {.name = "exchanges",
          .found = fmt::format("{}: what came is what was sent (tokens travel by {})",
                               fmt::join(right, ", "), to_string(parallel.transport))};
}

Check check_cores(const std::vector<const RankFacts*>& ranks) {
  const RankFacts& first = *ranks.front();
  const int count = static_cast<int>(ranks.size());
  const int threads = count * first.threads;
  const bool shared = !first.pinned && count > 1;
  Check check{.name = "cores",
              .found = fmt::format("host {}: {} rank(s) x {} thread(s) on {} core(s), {}",
                                   first.host, count, first.threads, first.cores,
                                   first.pinned ? "each thread pinned to its own" : "not pinned")};
  if (shared && threads > first.cores) {
    check.verdict = Verdict::kWarning;
    check.advice = fmt::format(
        "more threads than cores: ranks take turns, and every exchange waits for the slowest. "
        "Start {} "
        "rank(s) on this host, or give --threads",
        first.cores);
  }
  // One core for a whole rank is what an outer mpirun leaves of a machine unless it is told
  // otherwise.
  if (first.cores == 1 && first.machine_cpus > 1) {
    check.verdict = Verdict::kWarning;
    check.advice = fmt::format(
        "this process may use 1 of the {} CPUs of its host: inside another mpirun give that one "
        "--bind-to none, in a container or an allocation ask for more CPUs",
        first.machine_cpus);
  }
  return check;
}

Check check_shared_memory(const std::vector<const RankFacts*>& ranks) {
  const RankFacts& first = *ranks.front();
  const auto said = [](int64_t free) {
    return free < 0 ? std::string("not writable") : format_bytes(free) + " free";
  };
  Check check{
      .name = "shared memory",
      .found = fmt::format("host {}: MPI's folder {}, /dev/shm {}", first.host,
                           said(first.folder_free_bytes), said(first.shared_memory_free_bytes))};
  const int64_t wanted = kLittleSharedMemory * static_cast<int64_t>(ranks.size());
  if (first.folder_free_bytes < 0) {
    check.verdict = Verdict::kProblem;
    check.advice =
        "MPI's files lie under $XDG_RUNTIME_DIR, or /tmp: give ranks the right to write there";
  } else if (first.folder_free_bytes < wanted) {
    check.verdict = Verdict::kWarning;
    check.advice = fmt::format(
        "MPI's files lie under $XDG_RUNTIME_DIR, or /tmp: have {} free for the ranks of this host, "
        "or "
        "set XDG_RUNTIME_DIR to a folder that has",
        format_bytes(wanted));
  }
  return check;
}

Check check_memory_access(const std::vector<const RankFacts*>& ranks) {
  const bool forbidden = std::ranges::any_of(
      ranks, [](const RankFacts* it) { return it->neighbour == MemoryAccess::kForbidden; });
  const std::string& host = ranks.front()->host;
  if (!forbidden) {
    return {.name = "memory access",
            .found = fmt::format("host {}: ranks may read one another's memory (one copy)", host)};
  }
  return {
      .name = "memory access",
      .verdict = Verdict::kWarning,
      .found = fmt::format("host {}: ranks may not read one another's memory: MPI copies twice, "
                           "through shared memory",
                           host),
      .advice = "slower for large steps alone; in a container --cap-add SYS_PTRACE allows it"};
}

// What differs between ranks, and whose it is.
Check check_same(const ProbeReport& report, const char* name, std::string RankFacts::* member) {
  const RankFacts& first = report.ranks.front();
  for (const RankFacts& it : report.ranks) {
    if (it.*member == first.*member) continue;
    return {.name = name,
            .verdict = Verdict::kProblem,
            .found = fmt::format("rank 0 (host {}) has {}, rank {} (host {}) has {}", first.host,
                                 first.*member, it.rank, it.host, it.*member),
            .advice = "install the same build at the same path on all hosts"};
  }
  return {.name = name, .found = fmt::format("{} on all ranks", first.*member)};
}

std::string where(const ProbeReport& report, size_t rank) {
  return rank < report.ranks.size() ? "host " + report.ranks[rank].host + ": " : "";
}

Check check_host_memory(const ProbeReport& report, size_t rank) {
  const RankModel& it = report.model[rank];
  const int64_t taken = it.weight_bytes + it.copied_bytes + it.workspace_bytes;
  Check check{
      .name = "memory",
      .found = fmt::format("{}{} of weights, {} of copies, {} for a step: of {} available; {} "
                           "tokens fit into the cache of a rank",
                           where(report, rank), format_bytes(it.weight_bytes),
                           format_bytes(it.copied_bytes), format_bytes(it.workspace_bytes),
                           format_bytes(it.available_bytes), it.kv_tokens)};
  if (taken > it.available_bytes) {
    check.verdict = Verdict::kWarning;
    check.advice = "steps will wait for the disk: use more hosts, or a smaller model";
  } else if (!it.note.empty()) {
    check.verdict = Verdict::kWarning;
    check.advice = it.note;
  }
  return check;
}

}  // namespace

Check check_mpi_version(const std::string& path, const std::string& version) {
  const std::string first = version.substr(0, version.find('\n'));
  Check check{.name = "mpirun", .found = fmt::format("{}: {}", path, first)};
  if (first.find("Open MPI) 4.1") == std::string::npos) {
    check.verdict = Verdict::kWarning;
    check.advice = "rota is tested with OpenMPI 4.1 (Debian: openmpi-bin)";
  }
  return check;
}

Check check_host(const HostSlots& host, const ProbeAnswer& answer, const std::string& build) {
  const std::string name = fmt::format("host {}", host.host);
  if (answer.here.empty()) {
    return {.name = name,
            .verdict = Verdict::kProblem,
            .found = with_words(answer),
            .advice =
                fmt::format("`ssh {}` must work without a password, and mpirun and this program be "
                            "at the same paths there",
                            host.host)};
  }
  const RankHere& here = answer.here.begin()->second;
  if (here.build != build) {
    return {.name = name,
            .verdict = Verdict::kProblem,
            .found = fmt::format("has build {}, this is {}", here.build, build),
            .advice = "install the same build at the same path on all hosts"};
  }
  return {.name = name,
          .found = fmt::format("answers as {}, same program and build, {} slot(s)", here.host,
                               host.slots)};
}

std::vector<Check> check_ranks(const ProbeAnswer& answer, const ParallelChoice& parallel,
                               int ranks) {
  std::vector<Check> checks = {check_start(answer, ranks)};
  if (!answer.report) return checks;
  const ProbeReport& report = *answer.report;
  checks.push_back(check_exchanges(report, parallel));
  checks.push_back(check_same(report, "program", &RankFacts::program));
  checks.push_back(check_same(report, "build", &RankFacts::build));
  for (const auto& [machine, there] : by_machine(report)) {
    checks.push_back(check_cores(there));
    checks.push_back(check_shared_memory(there));
    if (there.size() > 1) checks.push_back(check_memory_access(there));
  }
  return checks;
}

std::vector<Check> check_model(const ProbeReport& report) {
  if (!report.model_fault.empty()) {
    return {{.name = "model",
             .verdict = Verdict::kProblem,
             .found = report.model_fault,
             .advice = "`rota plan` with the same flags shows what each rank would hold"}};
  }
  if (report.model.empty()) return {};
  const RankModel& first = report.model.front();
  std::vector<Check> checks = {
      {.name = "model",
       .found = fmt::format(
           "{}, {}: can be cut like that{}", first.folder, format_bytes(first.file_bytes),
           report.model.size() > 1
               ? "; all ranks have the same options, configuration and weight index"
               : "")}};
  std::set<std::string> machines;
  for (size_t rank = 0; rank < report.model.size(); ++rank) {
    const bool known =
        rank < report.ranks.size() && !machines.insert(report.ranks[rank].machine).second;
    if (!known) checks.push_back(check_host_memory(report, rank));
  }
  return checks;
}

Verdict worst(std::span<const Check> checks) {
  Verdict found = Verdict::kOk;
  for (const Check& it : checks) found = std::max(found, it.verdict);
  return found;
}

}  // namespace rota
