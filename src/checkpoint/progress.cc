#include "checkpoint/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/log.h"

namespace rota {
namespace {

constexpr double kLogEverySeconds = 10;
constexpr int kBarCells = 24;
constexpr double kGiga = 1e9;

}  // namespace

ConsoleLine::ConsoleLine() : terminal_(isatty(STDERR_FILENO) == 1), next_log_(kLogEverySeconds) {}

void ConsoleLine::show(int64_t done, int64_t total, const std::string& line) {
  const bool complete = done == total;
  if (terminal_) {
    const int cells = total > 0 ? static_cast<int>(done * kBarCells / total) : kBarCells;
    const std::string text =
        fmt::format("\r[{:<{}}] {}\033[K{}", std::string(static_cast<size_t>(cells), '#'),
                    kBarCells, line, complete ? "\n" : "");
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  } else if (complete || seconds() >= next_log_) {
    log::info("{}", line);
    next_log_ = seconds() + kLogEverySeconds;
  }
}

std::string progress_line(std::string_view what, int64_t done, int64_t total, double seconds) {
  const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
  const double rate = seconds > 0 ? static_cast<double>(done) / kGiga / seconds : 0;
  return fmt::format("{} {:3.0f} %  {:.1f} of {:.1f} GB  {:.1f} GB/s", what, share * 100,
                     static_cast<double>(done) / kGiga, static_cast<double>(total) / kGiga, rate);
}

LoadProgress console_progress(std::string what) {
  // One line, shared by the copies of the callback.
  return [what = std::move(what), console = std::make_shared<ConsoleLine>()](int64_t done,
                                                                             int64_t total) {
    console->show(done, total, progress_line(what, done, total, console->seconds()));
  };
}

}  // namespace rota
