#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <optional>

namespace rota::log {
namespace {

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

constexpr const char* kLevelVariable = "ROTA_LOG_LEVEL";
constexpr std::array<std::string_view, 5> kLevelNames = {"debug", "info", "warning", "error",
                                                         "off"};
constexpr std::array<spdlog::level::level_enum, 5> kLevels = {
    spdlog::level::debug, spdlog::level::info, spdlog::level::warn, spdlog::level::err,
    spdlog::level::off};

std::optional<spdlog::level::level_enum> level_of(std::string_view name) {
  for (size_t i = 0; i < kLevelNames.size(); ++i) {
    if (kLevelNames[i] == name) return kLevels[i];
  }
  return std::nullopt;
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made =
        std::make_shared<spdlog::logger>("rota", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%H:%M:%S.%e %^%L%$ %v");
    const char* wanted = std::getenv(kLevelVariable);
    made->set_level(level_of(wanted == nullptr ? "" : wanted).value_or(spdlog::level::info));
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *instance;
}

std::string escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      out.push_back(c);
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  return out;
}

}  // namespace

Status check_environment() {
  const char* wanted = std::getenv(kLevelVariable);
  if (wanted == nullptr || *wanted == '\0' || level_of(wanted)) return {};
  std::string known;
  for (const std::string_view name : kLevelNames) {
    known.append(known.empty() ? "" : ", ").append(name);
  }
  return invalid_argument("{}={}: expected one of {}", kLevelVariable, escape(wanted), known);
}

void set_name(std::string_view name) {
  logger().set_pattern(fmt::format("%H:%M:%S.%e %^%L%$ {}: %v", name));
}

void set_level(Level level) { logger().set_level(to_spdlog(level)); }

void write(Level level, std::string_view line) { logger().log(to_spdlog(level), escape(line)); }

}  // namespace rota::log
