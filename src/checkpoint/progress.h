// Progress lines for what takes long: "loading weights  42 %  5.8 of 13.8 GB  2.1 GB/s".
//
// On a terminal the line is redrawn in place with a bar; elsewhere it is logged every ten seconds
// and at the end.
//   checkpoint.warm({.progress = console_progress("loading weights")});
//   ConsoleLine console;  console.show(done, total, fmt::format("{} of {} answered", done, total));
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/checkpoint.h"
#include "platform/clock.h"

namespace rota {

class ConsoleLine {
 public:
  ConsoleLine();
  void show(int64_t done, int64_t total, const std::string& line);  // done == total: the end
  double seconds() const { return seconds_since(start_); }

 private:
  bool terminal_;
  Clock::time_point start_ = Clock::now();
  double next_log_;
};

std::string progress_line(std::string_view what, int64_t done, int64_t total, double seconds);

LoadProgress console_progress(std::string what);

}  // namespace rota
