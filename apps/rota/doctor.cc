// rota doctor: whether ranks could be started here, reach one another, and serve a model; and what
// to do where not.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "platform/build_id.h"
#include "rota/command.h"
#include "rota/doctor_checks.h"
#include "rota/flags.h"
#include "rota/paint.h"
#include "supervisor/local_launch.h"
#include "supervisor/probe_launch.h"

namespace rota {
namespace {

constexpr int kRanksToTry = 2;  // where no more than one was asked for
constexpr size_t kHostsAtOnce = 16;
constexpr int kColumns = 100;

struct DoctorFlags {
  EngineFlags engine;
  std::string hostfile;
  double host_timeout = 20;
  bool json = false;
};

std::string_view word(Verdict verdict) {
  return verdict == Verdict::kOk ? "ok" : verdict == Verdict::kWarning ? "warning" : "problem";
}

// Shown as they come: hosts may take their time.
class Findings {
 public:
  explicit Findings(bool json) : json_(json) {}

  void add(Check check) {
    if (!json_) print(check);
    checks_.push_back(std::move(check));
  }
  void add(std::vector<Check> checks) {
    for (Check& it : checks) add(std::move(it));
  }
  bool sound() const { return worst(checks_) != Verdict::kProblem; }
  int end() const {
    if (json_) print_json();
    return sound() ? 0 : 1;
  }

 private:
  static void print(const Check& check) {
    constexpr int kIndent = 26;
    const Painter paint(drawing_style_of_stdout());
    const Paint colour = check.verdict == Verdict::kOk ? Paint::kMeant : Paint::kWarning;
    std::string text = left("", 2) + paint(colour, left(word(check.verdict), 9)) +
                       left(check.name, 15) + wrap(check.found, kIndent, kColumns) + "\n";
    if (!check.advice.empty()) {
      text += left("", kIndent) + paint(Paint::kBold, wrap(check.advice, kIndent, kColumns)) + "\n";
    }
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }
  void print_json() const {
    nlohmann::ordered_json checks = nlohmann::ordered_json::array();
    for (const Check& it : checks_) {
      checks.push_back({{"check", it.name},
                        {"verdict", word(it.verdict)},
                        {"found", it.found},
                        {"advice", it.advice}});
    }
    const nlohmann::ordered_json all = {{"verdict", word(worst(checks_))}, {"checks", checks}};
    std::puts(all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  }

  bool json_;
  std::vector<Check> checks_;
};

// False: there is no mpirun to go on with. needed: more than one rank is asked for.
bool examine_mpirun(bool needed, Findings& findings) {
  const Result<std::string> path = find_mpirun();
  if (path.ok()) {
    findings.add(check_mpi_version(*path, mpirun_version(*path)));
    return true;
  }
  findings.add(Check{.name = "mpirun",
                     .verdict = needed ? Verdict::kProblem : Verdict::kWarning,
                     .found = path.status().message(),
                     .advice = needed ? "without it rota serves with one process"
                                      : "one process, as these flags ask for, needs none"});
  return false;
}

// False: the list is faulty, or some host does not answer: starting ranks would say less.
bool examine_hosts(const DoctorFlags& flags, int ranks, Findings& findings) {
  if (flags.hostfile.empty()) return true;
  const Result<std::vector<HostSlots>> hosts = read_hostfile(flags.hostfile);
  const Status fit = hosts.ok() ? check_slots(flags.hostfile, *hosts, ranks) : hosts.status();
  if (!fit.ok()) {
    findings.add(Check{.name = "hostfile", .verdict = Verdict::kProblem, .found = fit.message()});
    return false;
  }
  std::vector<ProbeAnswer> answers(hosts->size());
  for (size_t first = 0; first < hosts->size(); first += kHostsAtOnce) {
    std::vector<std::thread> threads;
    for (size_t i = first; i < std::min(first + kHostsAtOnce, hosts->size()); ++i) {
      threads.emplace_back(
          [&, i] { answers[i] = greet_host((*hosts)[i].host, flags.host_timeout); });
    }
    for (std::thread& it : threads) it.join();
  }
  bool all = true;
  for (size_t i = 0; i < hosts->size(); ++i) {
    Check check = check_host((*hosts)[i], answers[i], build_id());
    all = all && check.verdict != Verdict::kProblem;
    findings.add(std::move(check));
  }
  return all;
}

void examine_ranks(const DoctorFlags& flags, EngineOptions options, Findings& findings) {
  const bool alone =
      options.parallel.tensor_parallel_size * options.parallel.data_parallel_size == 1;
  if (alone) {
    options.model.clear();
    options.parallel.data_parallel_size = kRanksToTry;
  }
  const Result<ParallelChoice> parallel = choose_parallel(options.parallel);
  if (!parallel.ok()) {
    findings.add(
        Check{.name = "flags", .verdict = Verdict::kProblem, .found = parallel.status().message()});
    return;
  }
  const int ranks = parallel->shape.ranks();
  if (!examine_hosts(flags, ranks, findings)) return;
  const ProbeAnswer answer = launch_probe({.options = options,
                                           .ranks = ranks,
                                           .hostfile = flags.hostfile,
                                           .seconds = options.parallel.rank_timeout});
  findings.add(check_ranks(answer, *parallel, ranks));
  if (answer.report) findings.add(check_model(*answer.report));
}

Status examine(const DoctorFlags& flags) {
  EngineFlags engine = flags.engine;
  const bool has_model = !engine.options.model.empty();
  if (!has_model) engine.options.model = "none";  // the other flags are checked all the same
  ROTA_ASSIGN_OR_RETURN(EngineOptions options, engine.resolve());
  if (!has_model) options.model.clear();
  log::set_level(log::Level::kError);
  const bool alone =
      options.parallel.tensor_parallel_size * options.parallel.data_parallel_size == 1;
  Findings findings(flags.json);
  if (examine_mpirun(!alone, findings)) examine_ranks(flags, options, findings);
  if (alone && has_model) findings.add(check_model(probe_model(options)));
  std::exit(findings.end());
}

}  // namespace

CommandRun add_doctor(CLI::App& app) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App& command = *app.add_subcommand(
      "doctor",
      "whether ranks start here, reach one another and can serve a model; what to do if not");
  flags->engine.add_to(command);
  command.get_option("MODEL")->required(false);
  toggle(command, "json", flags->json, "as JSON");
  flag(command, "--hostfile", flags->hostfile, "hosts to look at, as for `rota serve`")
      ->type_name("FILE")
      ->group("Ranks");
  flag(command, "--host-timeout", flags->host_timeout, "seconds that a host has to answer")
      ->group("Ranks");
  return [flags] { return examine(*flags); };
}

}  // namespace rota
