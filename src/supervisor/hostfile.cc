#include "supervisor/hostfile.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <sstream>

#include "platform/read_file.h"

namespace rota {
namespace {

constexpr int64_t kMaxBytes = 16 << 20;
constexpr std::string_view kSlots = "slots=";

// The number behind "slots=", or 0.
int slots_of(std::string_view word) {
  int slots = 0;
  const char* end = word.data() + word.size();
  const auto [stop, fault] = std::from_chars(word.data() + kSlots.size(), end, slots);
  return fault == std::errc() && stop == end && slots > 0 ? slots : 0;
}

void add(std::vector<HostSlots>& hosts, const HostSlots& more) {
  const auto known = std::ranges::find(hosts, more.host, &HostSlots::host);
  if (known == hosts.end()) {
    hosts.push_back(more);
  } else {
    known->slots = static_cast<int>(
        std::min<int64_t>(int64_t{known->slots} + more.slots, std::numeric_limits<int>::max()));
  }
}

}  // namespace

Result<std::vector<HostSlots>> parse_hostfile(const std::string& path, std::string_view text) {
  std::vector<HostSlots> hosts;
  std::istringstream lines{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    HostSlots found;
    if (!(words >> found.host)) continue;
    for (std::string word; words >> word;) {
      if (!word.starts_with(kSlots)) continue;
      found.slots = slots_of(word);
      if (found.slots == 0) {
        return invalid_argument(
            "--hostfile {}, line {}: \"{}\" is no number of ranks; expected slots=N", path, number,
            word);
      }
    }
    add(hosts, found);
  }
  if (hosts.empty()) {
    return invalid_argument(
        "--hostfile {}: names no host; expected a line such as \"node1 slots=2\"", path);
  }
  return hosts;
}

Result<std::vector<HostSlots>> read_hostfile(const std::string& path) {
  const Result<std::string> text = read_file(path, kMaxBytes);
  if (!text.ok()) return text.status().with_context("--hostfile");
  return parse_hostfile(path, *text);
}

Status check_slots(const std::string& path, std::span<const HostSlots> hosts, int ranks) {
  int64_t slots = 0;
  for (const HostSlots& it : hosts) slots += it.slots;
  if (slots >= ranks) return {};
  return invalid_argument(
      "--hostfile {}: {} host(s) with {} slots in all, for {} ranks (tensor parallel x data "
      "parallel); "
      "give more slots=N, or start fewer ranks",
      path, hosts.size(), slots, ranks);
}

}  // namespace rota
