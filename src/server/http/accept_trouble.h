// What is said of connections that cannot be taken: one line at once, then a line of numbers now
// and then. A machine out of descriptors is no place for a full log.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string_view>

#include "base/log.h"
#include "platform/clock.h"

namespace rota {

class AcceptTrouble {
 public:
  static constexpr std::chrono::seconds kBetweenLines{10};
  static constexpr std::chrono::milliseconds kShortestPause{50}, kLongestPause{1000};

  // `made_room`: an idle connection was closed for the new one.
  void report(std::string_view why, bool made_room) {
    ++(made_room ? evicted_ : failed_);
    const Clock::time_point now = Clock::now();
    if (said_any_ && now - last_line_ < kBetweenLines) return;
    log::warning(
        "new connections: {}; {} could not be taken, {} idle ones were closed for others; raise "
        "the "
        "limit of open files (ulimit -n) if these are honest clients",
        why, failed_, evicted_);
    said_any_ = true;
    last_line_ = now;
    failed_ = evicted_ = 0;
  }

  // How long to wait before the next try: longer each time until ease().
  std::chrono::milliseconds pause() {
    const auto now = pause_;
    pause_ = std::min(2 * pause_, kLongestPause);
    return now;
  }
  void ease() { pause_ = kShortestPause; }

 private:
  bool said_any_ = false;
  Clock::time_point last_line_;
  std::chrono::milliseconds pause_ = kShortestPause;
  int64_t failed_ = 0, evicted_ = 0;  // since the last line
};

}  // namespace rota
