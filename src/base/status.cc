#include "base/status.h"

#include <cstdio>
#include <cstdlib>

namespace rota {

void check_failed(const char* file, int line, const char* condition, std::string_view message) {
  std::fprintf(stderr, "%s:%d: check failed: %s: %.*s\n", file, line, condition,
               static_cast<int>(message.size()), message.data());
  std::abort();
}

std::string_view to_string(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kNotFound:
      return "not found";
    case StatusCode::kDataLoss:
      return "data loss";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kResourceExhausted:
      return "resource exhausted";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kCancelled:
      return "cancelled";
    case StatusCode::kIo:
      return "input/output";
    case StatusCode::kInternal:
      return "internal";
  }
  return "unknown";
}

Status Status::with_context(std::string_view prefix) const {
  return ok() ? *this : Status(code_, fmt::format("{}: {}", prefix, message_));
}

}  // namespace rota
