#include "supervisor/probe_launch.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "engine/probe_rank.h"
#include "platform/clock.h"
#include "supervisor/child_process.h"
#include "supervisor/local_launch.h"
#include "supervisor/run_folder.h"

namespace rota {
namespace {

using Json = nlohmann::json;

constexpr int kPollMilliseconds = 50;
constexpr double kGraceSeconds = 2;  // for an mpirun whose ranks have ended

// The end of a pipe that is read.
class Output {
 public:
  Output() {
    std::array<int, 2> ends{-1, -1};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return;
    read_ = ends[0];
    write_ = ends[1];
    ::fcntl(read_, F_SETFL, O_NONBLOCK);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output() {
    close_write();
    if (read_ >= 0) ::close(read_);
  }
  int to() const { return write_; }
  void close_write() {
    if (write_ >= 0) ::close(std::exchange(write_, -1));
  }
  // Appends what there is, after waiting a moment for it. False: there is nobody left to write.
  bool read(std::string& text) const {
    pollfd waiting = {read_, POLLIN, 0};
    ::poll(&waiting, 1, kPollMilliseconds);
    std::array<char, 1 << 14> bytes{};
    ssize_t got = 0;
    while ((got = ::read(read_, bytes.data(), bytes.size())) > 0) {
      text.append(bytes.data(), static_cast<size_t>(got));
    }
    return got != 0;
  }

 private:
  int read_ = -1;
  int write_ = -1;
};

void take_message(const Json& json, ProbeAnswer& answer) {
  if (json.contains("here")) {
    answer.here[json["here"].get<int>()] = {.host = json.value("host", ""),
                                            .build = json.value("build", "")};
  }
  if (json.contains("met")) answer.here[json["met"].get<int>()].met = true;
  if (json.contains("fault") && answer.fault.empty()) {
    answer.fault =
        fmt::format("rank {}: {}", json.value("rank", 0), json["fault"].get<std::string>());
  }
  if (!json.contains("report")) return;
  Result<ProbeReport> report = probe_report_from_json(json["report"]);
  if (report.ok()) {
    answer.report = std::move(*report);
  } else {
    answer.fault = report.status().message();
  }
}

// Of a line that begins anywhere: mpirun may write its own before it.
void take_line(const std::string& line, ProbeAnswer& answer) {
  const size_t begin = line.find(kProbeLine);
  if (begin == std::string::npos) {
    answer.said += line + "\n";
    return;
  }
  const Json json =
      Json::parse(line.substr(begin + std::string(kProbeLine).size()), nullptr, false);
  if (json.is_object()) take_message(json, answer);
}

void take_lines(std::string& text, ProbeAnswer& answer) {
  for (size_t end = 0; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1)) {
    take_line(text.substr(0, end), answer);
  }
}

std::string describe_missing(const ProbeAnswer& answer, int ranks, double seconds) {
  std::string who;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto it = answer.here.find(rank);
    if (it != answer.here.end() && it->second.met) continue;
    who += fmt::format("{}rank {}{}", who.empty() ? "" : ", ", rank,
                       it == answer.here.end() ? " was not started"
                                               : fmt::format(" (host {}) waits", it->second.host));
  }
  return fmt::format("no answer within {:.0f} s: {}", seconds,
                     who.empty() ? "all ranks have met, and are silent" : who);
}

// Until `done`, the end of mpirun, or the deadline.
template <typename Done>
Status run(const LocalLaunch& wanted, double seconds, ProbeAnswer& answer, const Done& done) {
  ROTA_ASSIGN_OR_RETURN(const MpiLaunch launch, local_launch(wanted));
  const MpiCommand mpi = mpi_command(launch);
  Output output;
  ROTA_ASSIGN_OR_RETURN(
      ChildProcess process,
      ChildProcess::start_group(mpi.command, mpi.environment, {output.to(), output.to()}));
  output.close_write();
  const auto start = Clock::now();
  std::string text;
  bool open = true;
  while (open && !done() && seconds_since(start) < seconds) {
    open = output.read(text) && !process.has_ended();
    take_lines(text, answer);
  }
  output.read(text);
  take_lines(text, answer);
  answer.seconds = seconds_since(start);
  const bool in_time = answer.seconds < seconds;
  const std::string end = process.end(in_time ? kGraceSeconds : 0);
  if (done() || !answer.fault.empty()) return {};
  answer.fault =
      in_time ? fmt::format("mpirun {}", end) : describe_missing(answer, wanted.ranks, seconds);
  return {};
}

ProbeAnswer finish(const Status& status, ProbeAnswer answer) {
  if (!status.ok()) answer.fault = status.message();
  return answer;
}

}  // namespace

ProbeAnswer launch_probe(const ProbeLaunch& launch) {
  ProbeAnswer answer;
  Result<RunFolder> folder = RunFolder::make();
  if (!folder.ok()) return finish(folder.status(), std::move(answer));
  const LocalLaunch wanted{
      .ranks = launch.ranks,
      .arguments = {"doctor-rank", to_json(launch.options).dump(), folder->path().string()},
      .run_folder = folder->path(),
      .hostfile = launch.hostfile};
  const Status status =
      run(wanted, launch.seconds, answer, [&] { return answer.report.has_value(); });
  return finish(status, std::move(answer));
}

ProbeAnswer greet_host(const std::string& host, double seconds) {
  ProbeAnswer answer;
  Result<RunFolder> folder = RunFolder::make();
  if (!folder.ok()) return finish(folder.status(), std::move(answer));
  const std::filesystem::path list = folder->path() / "host";
  std::ofstream(list) << host << " slots=1\n";
  const LocalLaunch wanted{.ranks = 1,
                           .arguments = {"doctor-rank", "hello", folder->path().string()},
                           .run_folder = folder->path(),
                           .hostfile = list.string()};
  const Status status = run(wanted, seconds, answer, [&] { return !answer.here.empty(); });
  return finish(status, std::move(answer));
}

std::string mpirun_version(const std::string& mpirun) {
  constexpr double kSeconds = 20;
  Output output;
  const Result<ChildProcess> process =
      ChildProcess::start_group({mpirun, "--version"}, {}, {output.to(), output.to()});
  output.close_write();
  const auto start = Clock::now();
  std::string text;
  while (process.ok() && seconds_since(start) < kSeconds && output.read(text)) {
  }
  return text;
}

}  // namespace rota
