#include "rota/gsm8k_results.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "checkpoint/json_file.h"
#include "platform/read_file.h"

namespace rota {
namespace {

constexpr int64_t kMaxBytes = 1 << 30;

Status system_fault(const std::string& path) {
  return error(StatusCode::kIo, "{}: {}", path, std::strerror(errno));
}

// The first setting in which two runs differ: "shots is 8 there and 4 here"; empty: none.
std::string difference(const nlohmann::json& there, const nlohmann::ordered_json& here) {
  for (const auto& [name, value] : here.items()) {
    nlohmann::json found;
    if (there.is_object() && there.contains(name)) found = there[name];
    if (found != nlohmann::json(value)) {
      return fmt::format("{} is {} there and {} here", name, found.dump(), value.dump());
    }
  }
  return {};
}

}  // namespace

nlohmann::ordered_json to_json(const Gsm8kAnswer& answer) {
  return {
      {"problem", answer.problem},
      {"expected", answer.expected},
      {"answer", answer.number ? nlohmann::ordered_json(*answer.number) : nlohmann::ordered_json()},
      {"correct", answer.correct()},
      {"finish_reason", answer.finish_reason},
      {"tokens", answer.tokens},
      {"text", answer.text}};
}

Result<Gsm8kAnswer> gsm8k_answer_from_json(const nlohmann::json& json) {
  try {
    Gsm8kAnswer answer{.problem = json.at("problem").get<int64_t>(),
                       .expected = json.at("expected").get<std::string>(),
                       .number = {},
                       .text = json.at("text").get<std::string>(),
                       .finish_reason = json.at("finish_reason").get<std::string>(),
                       .tokens = json.at("tokens").get<int64_t>()};
    if (!json.at("answer").is_null()) answer.number = json.at("answer").get<std::string>();
    return answer;
  } catch (const nlohmann::json::exception&) {
    return invalid_argument("expected an answer of `rota eval gsm8k`");
  }
}

Result<Gsm8kResults> Gsm8kResults::open(const std::string& path,
                                        const nlohmann::ordered_json& settings) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return system_fault(path);
  Gsm8kResults results(path, fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return error(StatusCode::kUnavailable, "{}: another run is writing it", path);
  }
  ROTA_RETURN_IF_ERROR(results.read(settings));
  return results;
}

Gsm8kResults::Gsm8kResults(Gsm8kResults&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      answers_(std::move(other.answers_)) {}

Gsm8kResults::~Gsm8kResults() {
  if (fd_ >= 0) ::close(fd_);
}

Status Gsm8kResults::read(const nlohmann::ordered_json& settings) {
  ROTA_ASSIGN_OR_RETURN(const std::string text, read_file(path_, kMaxBytes));
  const size_t whole = text.rfind('\n') + 1;  // npos + 1: none
  std::string_view lines = std::string_view(text).substr(0, whole);
  if (lines.empty() && !text.empty() && !text.starts_with("{\"settings\"")) {
    return invalid_argument("{}: is no file of results; name another one", path_);
  }
  if (whole < text.size() && ::ftruncate(fd_, static_cast<off_t>(whole)) != 0) {
    return system_fault(path_);
  }
  if (lines.empty()) return write_line({{"settings", settings}});
  for (int64_t number = 1; !lines.empty(); ++number) {
    const std::string place = fmt::format("{}, line {}", path_, number);
    const size_t end = lines.find('\n');
    ROTA_ASSIGN_OR_RETURN(const nlohmann::json line, parse_json(place, lines.substr(0, end)));
    lines.remove_prefix(end + 1);
    if (number == 1) {
      nlohmann::json there;
      if (line.is_object() && line.contains("settings")) there = line["settings"];
      const std::string differs = difference(there, settings);
      if (differs.empty()) continue;
      return invalid_argument("{}: has answers of another run: {}; name another file", path_,
                              differs);
    }
    Result<Gsm8kAnswer> answer = gsm8k_answer_from_json(line);
    if (!answer.ok()) return answer.status().with_context(place);
    answers_.insert_or_assign(answer->problem, *answer);
  }
  return {};
}

Status Gsm8kResults::add(Gsm8kAnswer answer) {
  if (fd_ >= 0) ROTA_RETURN_IF_ERROR(write_line(to_json(answer)));
  answers_.insert_or_assign(answer.problem, std::move(answer));
  return {};
}

Status Gsm8kResults::write_line(const nlohmann::ordered_json& line) const {
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t written = ::write(fd_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return system_fault(path_);
    rest.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

}  // namespace rota
