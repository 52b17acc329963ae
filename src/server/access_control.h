// Who may talk to the server: the key, and what protects a local server from pages in a browser.
//
// A page of any site can make its visitor's browser send requests to this machine. Three doors are
// held: the page cannot read an answer or send JSON unless its origin is allowed (CORS); what a
// browser sends without asking (text/plain, forms, no type at all) is not JSON and refused; and a
// site whose name is suddenly an address of this machine (DNS rebinding) is known by the Host
// header, as long as the server listens on the loopback address alone.
//
//   const AccessControl access(rules);
//   if (auto answer = access.intercept(request)) ...  // the answer, instead of the route's
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/http/http_server.h"

namespace rota {

struct AccessRules {
  std::string api_key = {};                       // empty: none is asked for
  bool loopback_only = false;                     // nobody but this machine can reach the server
  std::vector<std::string> allowed_hosts = {};    // beside loopback; "*": any
  std::vector<std::string> allowed_origins = {};  // of pages elsewhere; "*": any
};

class AccessControl {
 public:
  explicit AccessControl(AccessRules rules) : rules_(std::move(rules)) {}

  // 401, 403 or 415 with what to do, or the answer to a browser that asks beforehand.
  std::optional<HttpResponse> intercept(const HttpRequest& request) const;
  // For every answer to the request: what lets an allowed page read it.
  HttpHeaders cors_headers(const HttpRequest& request) const;

 private:
  bool authorized(const HttpRequest& request) const;
  bool host_allowed(std::string_view host) const;
  // What Access-Control-Allow-Origin says of it; empty: not allowed.
  std::string_view allowed_origin(std::string_view origin) const;

  AccessRules rules_;
};

// The values of a flag that takes a JSON list, a comma list, or several of them.
Result<std::vector<std::string>> read_list(std::string_view flag,
                                           const std::vector<std::string>& values);

}  // namespace rota
