#include "engine/rank_pulse.h"

#include <poll.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>

namespace rota {
namespace {

constexpr std::string_view kLives = "rota-rank-lives ";
constexpr std::string_view kLoaded = "rota-rank-loaded ";
constexpr int kPatienceForLastWord = 1000;  // milliseconds
constexpr auto kBetweenSigns = std::chrono::milliseconds(250);

// Of the rank that mpirun has given this process; empty: none has.
std::string rank_of_environment() {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return rank == nullptr ? "" : rank;
}

// Left out where nobody takes it in time: a rank must not wait for whoever listens.
void say(const std::string& line, int milliseconds) {
  pollfd out = {STDOUT_FILENO, POLLOUT, 0};
  if (::poll(&out, 1, milliseconds) == 1 && (out.revents & POLLOUT) != 0) {
    static_cast<void>(!::write(STDOUT_FILENO, line.data(), line.size()));
  }
}

void give_signs(const std::stop_token& stop, const std::string& rank) {
  sigset_t closed;
  ::sigemptyset(&closed);
  ::sigaddset(&closed, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &closed, nullptr);
  const std::string line = std::string(kLives) + rank + "\n";
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  while (!stop.stop_requested()) {
    say(line, 0);
    stopped.wait_for(lock, stop, kBetweenSigns, [&] { return stop.stop_requested(); });
  }
}

std::optional<int> rank_after(std::string_view word, std::string_view line) {
  if (!line.starts_with(word)) return std::nullopt;
  line.remove_prefix(word.size());
  int rank = 0;
  const auto [end, fault] = std::from_chars(line.data(), line.data() + line.size(), rank);
  const bool whole = fault == std::errc() && end == line.data() + line.size();
  return whole ? std::optional(rank) : std::nullopt;
}

}  // namespace

RankPulse::RankPulse() : rank_(rank_of_environment()) {
  if (rank_.empty()) return;
  thread_ = std::jthread([this](const std::stop_token& stop) { give_signs(stop, rank_); });
}

void RankPulse::loaded() {
  if (rank_.empty()) return;
  thread_ = {};
  say(std::string(kLoaded) + rank_ + "\n", kPatienceForLastWord);
}

RankPulses::RankPulses(int ranks)
    : ranks_(static_cast<size_t>(ranks), {.heard_at = Clock::now()}) {}

bool RankPulses::read(std::string_view line, Clock::time_point now) {
  if (line.ends_with('\r')) line.remove_suffix(1);  // of a terminal on the way
  const std::optional<int> lives = rank_after(kLives, line);
  const std::optional<int> loaded = rank_after(kLoaded, line);
  if (!lives && !loaded) return false;
  const int rank = lives ? *lives : *loaded;
  if (rank < 0 || rank >= static_cast<int>(ranks_.size())) return false;
  Rank& it = ranks_[static_cast<size_t>(rank)];
  it.heard_at = now;
  it.started = true;
  it.loaded = it.loaded || loaded.has_value();
  return true;
}

std::optional<RankPulses::Silent> RankPulses::silent(const PulseLimits& limits,
                                                     Clock::time_point now) const {
  std::optional<Silent> found;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Rank& it = ranks_[rank];
    if (it.loaded) continue;
    const double seconds = std::chrono::duration<double>(now - it.heard_at).count();
    const bool too_long = seconds > (it.started ? limits.later : limits.first);
    if (too_long && (!found || seconds > found->seconds)) {
      found = Silent{.rank = static_cast<int>(rank), .started = it.started, .seconds = seconds};
    }
  }
  return found;
}

}  // namespace rota
