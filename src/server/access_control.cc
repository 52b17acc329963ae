#include "server/access_control.h"

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <cctype>
#include <nlohmann/json.hpp>

#include "server/http/errors.h"

namespace rota {
namespace {

constexpr std::string_view kAny = "*";

// Takes as long for a wrong key as for the right one.
bool same_secret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned>(a[i] ^ b[i % std::max<size_t>(b.size(), 1)]);
  }
  return difference == 0 && !b.empty();
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// The name of a Host header: without port, brackets and the dot of a full name. Empty: there is
// none.
std::string host_name(std::string_view host) {
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    return end == std::string_view::npos ? std::string() : lower(host.substr(1, end - 1));
  }
  std::string name = lower(host.substr(0, host.find(':')));
  if (name.ends_with('.')) name.pop_back();
  return name;
}

// Names of this machine that no server of names can give away.
bool is_loopback(const std::string& name) {
  if (name == "localhost" || name.ends_with(".localhost")) return true;
  boost::system::error_code not_an_address;
  const auto address = boost::asio::ip::make_address(name, not_an_address);
  if (not_an_address) return false;
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return make_address_v4(boost::asio::ip::v4_mapped, address.to_v6()).is_loopback();
  }
  return address.is_loopback();
}

bool is_json(std::string_view content_type) {
  const std::string type = lower(trimmed(content_type.substr(0, content_type.find(';'))));
  return type == "application/json" ||
         (type.starts_with("application/") && type.ends_with("+json"));
}

HttpResponse wrong_type(std::string_view content_type) {
  return error_response(
      415,
      fmt::format("The body must be JSON, sent with the header 'Content-Type: application/json' "
                  "(curl: -H 'Content-Type: application/json'); this request {}.",
                  content_type.empty() ? std::string("has no Content-Type")
                                       : fmt::format("says '{}'", content_type.substr(0, 100))),
      "invalid_request_error");
}

bool is_preflight(const HttpRequest& request) {
  return request.method == "OPTIONS" && !request.header("origin").empty() &&
         !request.header("access-control-request-method").empty();
}

}  // namespace

bool AccessControl::authorized(const HttpRequest& request) const {
  // The page holds no secret; it asks for the key itself.
  const std::string& path = request.path;
  if (rules_.api_key.empty() || path == "/health" || path == "/ready" || path == "/" ||
      path.starts_with("/page/")) {
    return true;
  }
  std::string_view given = request.header("authorization");
  constexpr std::string_view kBearer = "Bearer ";
  if (given.starts_with(kBearer)) given.remove_prefix(kBearer.size());
  return same_secret(given, rules_.api_key);
}

bool AccessControl::host_allowed(std::string_view host) const {
  if (!rules_.loopback_only || host.empty()) return true;  // browsers always send one
  const std::string name = host_name(host);
  if (name.empty()) return false;
  if (is_loopback(name)) return true;
  return std::ranges::any_of(rules_.allowed_hosts, [&](const std::string& allowed) {
    return allowed == kAny || host_name(allowed) == name || lower(allowed) == name;
  });
}

std::string_view AccessControl::allowed_origin(std::string_view origin) const {
  if (origin.empty()) return {};
  for (const std::string& allowed : rules_.allowed_origins) {
    if (allowed == kAny || allowed == origin) return allowed;
  }
  return {};
}

HttpHeaders AccessControl::cors_headers(const HttpRequest& request) const {
  const std::string_view allowed = allowed_origin(request.header("origin"));
  if (allowed.empty()) return {};
  HttpHeaders headers = {{"Access-Control-Allow-Origin", std::string(allowed)},
                         {"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"}};
  if (allowed != kAny) headers.emplace_back("Vary", "Origin");
  return headers;
}

std::optional<HttpResponse> AccessControl::intercept(const HttpRequest& request) const {
  if (!host_allowed(request.header("host"))) {
    return error_response(
        403,
        fmt::format("This server listens on the loopback address only and does not answer to the "
                    "host '{}': use http://127.0.0.1, or start it with --allowed-hosts.",
                    request.header("host").substr(0, 100)),
        "invalid_request_error");
  }
  if (is_preflight(request)) {
    if (allowed_origin(request.header("origin")).empty()) {
      return error_response(403,
                            "Pages of this origin may not use the server: start it with "
                            "--allowed-origins ORIGIN.",
                            "invalid_request_error");
    }
    HttpResponse go_on;
    go_on.content_type.clear();
    go_on.headers = {{"Access-Control-Allow-Methods", "GET, HEAD, POST"},
                     // The wildcard does not cover the key's header.
                     {"Access-Control-Allow-Headers", "Authorization, Content-Type, *"},
                     {"Access-Control-Max-Age", "600"}};
    return go_on;
  }
  if (!authorized(request)) {
    return error_response(
        401, "This server asks for an API key: send the header 'Authorization: Bearer KEY'.",
        "invalid_request_error", {}, "invalid_api_key");
  }
  const std::string_view type = request.header("content-type");
  if (request.method == "POST" && !is_json(type)) return wrong_type(type);
  return std::nullopt;
}

Result<std::vector<std::string>> read_list(std::string_view flag,
                                           const std::vector<std::string>& values) {
  std::vector<std::string> out;
  for (const std::string& value : values) {
    std::string_view rest = trimmed(value);
    if (rest.starts_with('[')) {
      const auto json = nlohmann::json::parse(rest, nullptr, /*allow_exceptions=*/false);
      const bool strings = json.is_array() && std::ranges::all_of(json, [](const auto& entry) {
                             return entry.is_string();
                           });
      if (!strings) {
        return invalid_argument("{} {}: expected a JSON list of strings or a comma list", flag,
                                value);
      }
      for (const auto& entry : json) out.push_back(entry.get<std::string>());
      continue;
    }
    while (!rest.empty()) {
      const size_t comma = std::min(rest.find(','), rest.size());
      const std::string_view entry = trimmed(rest.substr(0, comma));
      if (!entry.empty()) out.emplace_back(entry);
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
  }
  return out;
}

}  // namespace rota
