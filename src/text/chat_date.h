// The date that a prompt says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"

namespace rota {

// YYYY-MM-DD: the given date, or today in local time. kInvalidArgument names the field `date`.
Result<std::string> prompt_date(const std::optional<std::string>& date);
// Noon of the given date in local time, or now.
Result<int64_t> unix_seconds_of(const std::optional<std::string>& date);

}  // namespace rota
