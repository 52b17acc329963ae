// Signs of life of ranks that start and load: lines on their standard output, which mpirun carries
// to the front, whatever host a rank is on and however long its main thread is busy. A rank that is
// stopped or hangs with all its threads is silent; one that only loads slowly is not.
//
//   RankPulse pulse;                    // of this rank, until it has loaded
//   RankPulses pulses(ranks);           // of all, at the front
//   pulses.read(line);                  // false: the line is none of ours
//   if (const auto it = pulses.silent({.first = 60, .later = 5})) ...
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "platform/clock.h"

namespace rota {

class RankPulse {
 public:
  RankPulse();  // nothing is said by a process that no mpirun has started
  ~RankPulse() = default;
  RankPulse(const RankPulse&) = delete;
  RankPulse& operator=(const RankPulse&) = delete;

  // The last word: from now on the ranks see for themselves who does not come.
  void loaded();

 private:
  std::string rank_;
  std::jthread thread_;  // last: it uses the others
};

// Seconds without a sign: before the first one, and then.
struct PulseLimits {
  double first = 60;
  double later = 5;
};

class RankPulses {
 public:
  explicit RankPulses(int ranks);

  // Notes a line without its end.
  bool read(std::string_view line, Clock::time_point now = Clock::now());

  struct Silent {
    int rank = 0;
    bool started = false;  // it has given signs before
    double seconds = 0;
  };
  // The rank that is silent for longest, if it is too long.
  std::optional<Silent> silent(const PulseLimits& limits,
                               Clock::time_point now = Clock::now()) const;

 private:
  struct Rank {
    Clock::time_point heard_at;
    bool started = false;
    bool loaded = false;
  };
  std::vector<Rank> ranks_;
};

}  // namespace rota
