#include "server/access_control.h"

#include <gmock/gmock.h>

namespace rota {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

HttpRequest post(HttpHeaders headers) {
  HttpRequest request;
  request.method = "POST";
  request.path = "/v1/completions";
  request.headers = std::move(headers);
  return request;
}

int status_of_answer(const AccessControl& access, const HttpRequest& request) {
  const std::optional<HttpResponse> answer = access.intercept(request);
  return answer ? answer->status : 0;
}

TEST(BrowserAttack, BodiesThatABrowserSendsUnaskedAreToldWhichHeaderToSend) {
  const AccessControl access(AccessRules{});
  EXPECT_EQ(status_of_answer(access, post({})), 415);
  for (const char* type :
       {"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
        "text/plain; application/json", "application/jsonp", "x+json"}) {
    const auto answer = access.intercept(post({{"Content-Type", type}}));
    ASSERT_TRUE(answer) << type;
    EXPECT_EQ(answer->status, 415) << type;
    EXPECT_THAT(answer->body, HasSubstr("-H 'Content-Type: application/json'"));
  }
  for (const char* type : {"application/json", "Application/JSON ; charset=utf-8",
                           "application/json;charset=utf-8", "application/vnd.api+json"}) {
    EXPECT_EQ(status_of_answer(access, post({{"content-type", type}})), 0) << type;
  }
}

TEST(BrowserAttack, NamesThatWereReboundToLoopbackAreRefused) {
  const AccessControl access(
      {.loopback_only = true, .allowed_hosts = {"proxy.example", "other:1", "::1"}});
  const auto status = [&](const char* host) {
    return status_of_answer(access, post({{"content-type", "application/json"}, {"Host", host}}));
  };
  for (const char* host :
       {"", "localhost", "LOCALHOST:8000", "127.0.0.1", "127.9.9.9:1", "[::1]", "[::1]:8000",
        "[::ffff:127.0.0.1]:80", "x.localhost.", "proxy.example", "Proxy.Example:443", "other"}) {
    EXPECT_EQ(status(host), 0) << host;
  }
  for (const char* host : {"evil.example", "evil.example:8000", "localhost.evil.example",
                           "127.0.0.1.evil.example", "notlocalhost", "10.0.0.1", "[::2]:8000",
                           "[::1", ":8000", "proxy.example.evil", "xproxy.example", "*"}) {
    EXPECT_EQ(status(host), 403) << host;
  }
  const auto answer = access.intercept(post({{"host", "evil.example"}}));
  EXPECT_THAT(answer->body, HasSubstr("--allowed-hosts"));
}

TEST(BrowserAttack, AnyHostWhereOthersMayComeOrTheListSaysSo) {
  const HttpRequest request =
      post({{"content-type", "application/json"}, {"host", "name.example"}});
  EXPECT_EQ(status_of_answer(AccessControl({.loopback_only = false}), request), 0);
  EXPECT_EQ(
      status_of_answer(AccessControl({.loopback_only = true, .allowed_hosts = {"*"}}), request), 0);
}

std::string header_of(const HttpHeaders& headers, std::string_view name) {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return "";
}

TEST(BrowserAttack, OriginsFollowTheListAndNeverGetCredentials) {
  const std::string page = "https://page.example";
  HttpRequest preflight = post({{"Origin", page},
                                {"Access-Control-Request-Method", "POST"},
                                {"Content-Type", "text/plain"}});
  preflight.method = "OPTIONS";
  using List = std::vector<std::string>;
  for (const auto& [origins, said] : {std::pair(List{}, ""),
                                      {List{"https://other.example", "page.example"}, ""},
                                      {List{"https://other.example", page}, page.c_str()},
                                      {List{"*"}, "*"}}) {
    const AccessControl access({.api_key = "key", .allowed_origins = origins});
    const HttpHeaders headers = access.cors_headers(preflight);
    EXPECT_EQ(header_of(headers, "Access-Control-Allow-Origin"), said);
    EXPECT_EQ(header_of(headers, "Access-Control-Allow-Credentials"), "");
    EXPECT_EQ(status_of_answer(access, preflight), *said != '\0' ? 200 : 403);
  }
  EXPECT_THAT(AccessControl({.allowed_origins = {"*"}}).cors_headers(post({})), IsEmpty());
}

TEST(Key, IsAskedForEverywhereButInHealthAndThePageThatAsksForIt) {
  const AccessControl access({.api_key = "open sesame"});
  HttpRequest request;
  request.method = "GET";
  for (const char* path : {"/health", "/ready", "/", "/page/chat.js"}) {
    request.path = path;
    EXPECT_EQ(status_of_answer(access, request), 0) << path;
  }
  for (const char* path : {"/v1/models", "/metrics", "/rota/info", "/nothing", "/pages",
                           "//page/chat.js", "/v1/../page/"}) {
    request.path = path;
    request.headers = {};
    EXPECT_EQ(status_of_answer(access, request), 401) << path;
    for (const char* key : {"Bearer open sesame", "open sesame"}) {
      request.headers = {{"authorization", key}};
      EXPECT_EQ(status_of_answer(access, request), 0) << path;
    }
  }
}

TEST(Lists, JsonOrCommas) {
  const auto list = [](std::vector<std::string> values) { return *read_list("--x", values); };
  EXPECT_THAT(list({}), IsEmpty());
  EXPECT_THAT(list({"a, b,,c ", "d"}), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(list({R"(["a,b", "*"])"}), ElementsAre("a,b", "*"));
  for (const char* bad : {R"(["a")", "[1]", "[", "[] x"}) {
    const auto refused = read_list("--allowed-origins", {bad});
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_THAT(refused.status().message(), HasSubstr("--allowed-origins"));
  }
}

}  // namespace
}  // namespace rota
