#include "server/http/errors.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace rota {
namespace {

using nlohmann::json;

// "FIELD: rest": FIELD is a JSON path of a request, e.g. messages[0].content.
std::optional<std::string> leading_field(std::string_view message) {
  const size_t colon = message.find(": ");
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  const std::string_view field = message.substr(0, colon);
  const bool is_path = std::all_of(field.begin(), field.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '[' || c == ']';
  });
  return is_path ? std::optional<std::string>(field) : std::nullopt;
}

}  // namespace

std::string error_json(std::string_view message, std::string_view type,
                       const std::optional<std::string>& param,
                       const std::optional<std::string>& code) {
  json error = {{"message", message}, {"type", type}, {"param", nullptr}, {"code", nullptr}};
  if (param) error["param"] = *param;
  if (code) error["code"] = *code;
  return json{{"error", std::move(error)}}.dump(-1, ' ', false, json::error_handler_t::replace);
}

HttpResponse error_response(int status, std::string_view message, std::string_view type,
                            const std::optional<std::string>& param,
                            const std::optional<std::string>& code) {
  HttpResponse response;
  response.status = status;
  response.body = error_json(message, type, param, code);
  response.reason = std::string(message);
  if (status == 429 || status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

HttpResponse error_response(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument: {
      const bool too_long = status.message().starts_with("This model's maximum context length");
      return error_response(
          400, status.message(), "invalid_request_error",
          too_long ? std::optional<std::string>("messages") : leading_field(status.message()),
          too_long ? std::optional<std::string>("context_length_exceeded") : std::nullopt);
    }
    case StatusCode::kUnsupported:
      return error_response(400, status.message(), "invalid_request_error",
                            leading_field(status.message()));
    case StatusCode::kNotFound:
      return error_response(404, status.message(), "invalid_request_error");
    case StatusCode::kResourceExhausted:
      return error_response(429, status.message(), "rate_limit_error", {}, "rate_limit_exceeded");
    case StatusCode::kUnavailable:
      return error_response(503, status.message(), "service_unavailable");
    default:
      return error_response(500, status.message(), "server_error", {}, "server_error");
  }
}

}  // namespace rota
