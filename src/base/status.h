// Status and Result<T>: how a function says that it can fail (no exceptions cross a room's border).
//
// Contract: a message names the thing (file, tensor, flag, field), what was found, what was
// expected, and what to do. Example:
//   Result<Config> parse(std::string_view text);
//   ROTA_ASSIGN_OR_RETURN(Config config, parse(text));
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace rota {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // the caller's value is wrong: HTTP 400
  kNotFound,           // no such file, tensor, model: HTTP 404
  kDataLoss,           // a file is damaged or lies about itself
  kUnsupported,        // well-formed, but not served here; the message says why
  kResourceExhausted,  // out of memory, KV cache, queue places, disk: HTTP 429
  kUnavailable,        // not now: loading, draining, engine restarting: HTTP 503
  kCancelled,          // the client went away
  kIo,                 // the operating system refused
  kInternal,           // our own fault: HTTP 500
};

std::string_view to_string(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same error, told from further away: "PREFIX: message".
  Status with_context(std::string_view prefix) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A status with a formatted message: error(StatusCode::kNotFound, "{}: no tensor {}", file, name).
template <typename... Args>
Status error(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
Status invalid_argument(fmt::format_string<Args...> format, Args&&... args) {
  return Status(StatusCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}

// A value or the status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {
    ROTA_CHECK(!status_.ok(), "a Result without a value needs an error");
  }

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Status& status() const { return status_; }

  T& value() & {
    ROTA_CHECK(ok(), status_.message());
    return *value_;
  }
  const T& value() const& {
    ROTA_CHECK(ok(), status_.message());
    return *value_;
  }
  T&& value() && {
    ROTA_CHECK(ok(), status_.message());
    return *std::move(value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

inline const Status& status_of(const Status& status) { return status; }
template <typename T>
const Status& status_of(const Result<T>& result) {
  return result.status();
}

}  // namespace rota

#define ROTA_CONCAT_(a, b) a##b
#define ROTA_CONCAT(a, b) ROTA_CONCAT_(a, b)

#define ROTA_RETURN_IF_ERROR(expr)                            \
  do {                                                        \
    if (auto rota_status_ = (expr); !rota_status_.ok()) {     \
      return ::rota::Status(::rota::status_of(rota_status_)); \
    }                                                         \
  } while (false)

#define ROTA_ASSIGN_OR_RETURN(lhs, expr) \
  ROTA_ASSIGN_OR_RETURN_(ROTA_CONCAT(rota_result_, __LINE__), lhs, expr)
#define ROTA_ASSIGN_OR_RETURN_(result, lhs, expr) \
  auto result = (expr);                           \
  if (!result.ok()) return result.status();       \
  lhs = std::move(result).value()
