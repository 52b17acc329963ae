// Logging to stderr, one line an event: log::info("loaded {} tensors", n). Control characters in
// the arguments are escaped, so that a request cannot forge a line.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace rota::log {

enum class Level { kDebug, kInfo, kWarning, kError };

// Refuses a ROTA_LOG_LEVEL that means nothing; programs ask before their first line.
Status check_environment();

void set_name(std::string_view name);  // of this process, before each line; default: none
void set_level(Level level);           // default: kInfo, or what ROTA_LOG_LEVEL says
void write(Level level, std::string_view line);

template <typename... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace rota::log
