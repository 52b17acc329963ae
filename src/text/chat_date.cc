#include "text/chat_date.h"

#include <ctime>

namespace rota {

Result<int64_t> unix_seconds_of(const std::optional<std::string>& date) {
  if (!date) return static_cast<int64_t>(std::time(nullptr));
  std::tm parts{};
  const char* end = strptime(date->c_str(), "%Y-%m-%d", &parts);
  if (end == nullptr || *end != '\0') return invalid_argument("date: expected YYYY-MM-DD");
  parts.tm_hour = 12;
  parts.tm_isdst = -1;
  return static_cast<int64_t>(std::mktime(&parts));
}

Result<std::string> prompt_date(const std::optional<std::string>& date) {
  ROTA_ASSIGN_OR_RETURN(const int64_t seconds, unix_seconds_of(date));
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  localtime_r(&time, &parts);
  char text[16];
  const size_t size = std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return std::string(text, size);
}

}  // namespace rota
