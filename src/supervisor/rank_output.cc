#include "supervisor/rank_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace rota {
namespace {

constexpr double kLeastSecondsToStart = 30;   // hosts are asked first
constexpr double kLeastSecondsOfSilence = 3;  // more threads than cores: a sign may be late
constexpr size_t kLongestLine = 1 << 16;

}  // namespace

Result<RankOutput> RankOutput::make(int ranks) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) {
    return error(StatusCode::kIo, "a pipe for the ranks' output: {}", std::strerror(errno));
  }
  ::fcntl(pipe[0], F_SETFL, ::fcntl(pipe[0], F_GETFL) | O_NONBLOCK);
  return RankOutput(pipe[0], pipe[1], ranks);
}

RankOutput::RankOutput(RankOutput&& other) noexcept
    : from_(std::exchange(other.from_, -1)),
      to_(std::exchange(other.to_, -1)),
      rest_(std::move(other.rest_)),
      pulses_(std::move(other.pulses_)) {}

RankOutput::~RankOutput() {
  close_to();
  if (from_ >= 0) ::close(from_);
}

void RankOutput::close_to() {
  if (to_ >= 0) ::close(std::exchange(to_, -1));
}

void RankOutput::read() {
  std::array<char, 4096> some{};
  while (from_ >= 0) {
    const ssize_t n = ::read(from_, some.data(), some.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      ::close(std::exchange(from_, -1));
      return;
    }
    rest_.append(some.data(), static_cast<size_t>(n));
    take_lines();
  }
}

void RankOutput::take_lines() {
  size_t begin = 0;
  for (size_t end = 0; (end = rest_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string_view line = std::string_view(rest_).substr(begin, end - begin);
    if (!pulses_.read(line)) std::fwrite(line.data(), 1, line.size() + 1, stderr);
  }
  rest_.erase(0, begin);
  if (rest_.size() > kLongestLine) rest_.clear();
}

std::string RankOutput::silence(double rank_timeout) const {
  const auto silent = pulses_.silent({.first = std::max(rank_timeout, kLeastSecondsToStart),
                                      .later = std::max(rank_timeout, kLeastSecondsOfSilence)});
  if (!silent) return {};
  if (!silent->started) {
    return fmt::format("rank {} was not there {:.0f} s after the start of mpirun", silent->rank,
                       silent->seconds);
  }
  return fmt::format("rank {} gave no sign of life for {:.0f} s while it started or loaded",
                     silent->rank, silent->seconds);
}

}  // namespace rota
