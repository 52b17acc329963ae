#include <gtest/gtest.h>

#include "server/http/errors.h"
#include "server/http/http_server.h"

namespace rota {
namespace {

TEST(PercentDecode, PlainAndEscaped) {
  EXPECT_EQ(percent_decode("/v1/models"), "/v1/models");
  EXPECT_EQ(percent_decode("/a%20b%2Fc"), "/a b/c");
}

TEST(PercentDecode, MalformedIsNothing) {
  for (const char* text : {"/%", "/%2", "/%zz", "/%00", "/%2g"})
    EXPECT_FALSE(percent_decode(text)) << text;
}

TEST(HttpRequest, HeadersInAnyCase) {
  HttpRequest request;
  request.headers = {{"Content-Type", "a"}, {"X-Key", "b"}};
  EXPECT_EQ(request.header("content-type"), "a");
  EXPECT_EQ(request.header("x-key"), "b");
  EXPECT_EQ(request.header("x-ke"), "");
}

TEST(ErrorResponse, FieldOfTheMessageBecomesParam) {
  const HttpResponse response =
      error_response(invalid_argument("messages[3].role: 'x' is no role"));
  EXPECT_EQ(response.status, 400);
  EXPECT_NE(response.body.find(R"("param":"messages[3].role")"), std::string::npos)
      << response.body;
  const HttpResponse plain = error_response(invalid_argument("The body: is not JSON"));
  EXPECT_NE(plain.body.find(R"("param":null)"), std::string::npos) << plain.body;
}

TEST(ErrorResponse, BusyAndAwayTellWhenToTryAgain) {
  for (const auto code : {StatusCode::kResourceExhausted, StatusCode::kUnavailable}) {
    const HttpResponse response = error_response(Status(code, "later"));
    EXPECT_TRUE(response.status == 429 || response.status == 503);
    ASSERT_EQ(response.headers.size(), 1u);
    EXPECT_EQ(response.headers.front().first, "Retry-After");
  }
}

TEST(ErrorResponse, InvalidUtf8InAMessageIsReplaced) {
  EXPECT_NE(error_json("a\xff", "t", {}, {}).find("\xEF\xBF\xBD"), std::string::npos);
}

}  // namespace
}  // namespace rota
