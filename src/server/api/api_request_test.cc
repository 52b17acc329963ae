#include "server/api/api_request.h"

#include <gmock/gmock.h>

#include "server/api/json_fields.h"

namespace rota {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Result<ApiRequest> completion(std::string_view json) {
  ROTA_ASSIGN_OR_RETURN(const OrderedJson body, parse_request_json(json));
  return parse_completion_request(body, {});
}

Result<ApiRequest> chat(std::string_view json) {
  ROTA_ASSIGN_OR_RETURN(const OrderedJson body, parse_request_json(json));
  return parse_chat_request(body, {});
}

TEST(ApiRequest, FieldsArriveInTheSamplingParameters) {
  const auto request =
      completion(R"({"prompt": "x", "temperature": 0.5, "top_p": 0.9, "top_k": 40, "seed": 7,
      "max_tokens": 9, "stop": "end", "logprobs": 2, "logit_bias": {"3": -5}, "stop_token_ids": [4, 5]})");
  ASSERT_TRUE(request.ok()) << request.status().message();
  EXPECT_EQ(request->sampling.temperature, 0.5);
  EXPECT_EQ(request->sampling.top_p, 0.9);
  EXPECT_EQ(request->sampling.top_k, 40);
  EXPECT_EQ(request->sampling.seed, 7);
  EXPECT_EQ(request->sampling.max_tokens, 9);
  EXPECT_EQ(request->sampling.logprobs, 2);
  EXPECT_EQ(request->stop, std::vector<std::string>{"end"});
  EXPECT_EQ(request->sampling.logit_bias.front(), (std::pair<int32_t, double>(3, -5)));
  EXPECT_EQ(request->client_stop_token_ids, (std::vector<int32_t>{4, 5}));
}

TEST(ApiRequest, PromptIsTextTokensOrListsOfThem) {
  EXPECT_EQ(completion(R"({"prompt": "x"})")->prompts.size(), 1u);
  EXPECT_EQ(completion(R"({"prompt": ["x", "y"]})")->prompts.size(), 2u);
  EXPECT_EQ(std::get<std::vector<int32_t>>(completion(R"({"prompt": [1, 2]})")->prompts[0]).size(),
            2u);
  EXPECT_EQ(completion(R"({"prompt": [[1, 2], [3]]})")->prompts.size(), 2u);
}

TEST(ApiRequest, NullIsAFieldThatWasNotSent) {
  const auto request =
      completion(R"({"prompt": "x", "temperature": null, "stop": null, "n": null, "seed": null})");
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->sampling.temperature, SamplingParams{}.temperature);
  EXPECT_FALSE(request->sampling.seed.has_value());
}

TEST(ApiRequest, ModelsDefaultsHoldWhereNothingIsSent) {
  SamplingParams defaults;
  defaults.temperature = 0.2;
  const auto body = parse_request_json(R"({"prompt": "x", "top_p": 0.5})");
  const auto request = parse_completion_request(*body, defaults);
  EXPECT_EQ(request->sampling.temperature, 0.2);
  EXPECT_EQ(request->sampling.top_p, 0.5);
}

TEST(ApiRequest, WrongValuesNameTheirField) {
  for (const char* field :
       {R"("temperature": -1)", R"("top_p": 0)", R"("n": 1000000000)", R"("max_tokens": -1)",
        R"("max_tokens": 18446744073709551615)", R"("logprobs": 1000000)", R"("min_p": 2)",
        R"("stop": [""])", R"("logit_bias": {"1": 1e308})", R"("seed": 1.5)", R"("stream": 1)",
        R"("best_of": 2)", R"("guided_json": {})"}) {
    const auto request = completion(fmt::format(R"({{"prompt": "x", {}}})", field));
    ASSERT_FALSE(request.ok()) << field;
    const std::string name(field + 1, std::string_view(field).find('"', 1) - 1);
    EXPECT_THAT(request.status().message(), StartsWith(name + ": ")) << field;
  }
}

TEST(ApiRequest, OptionsOfAStreamNeedAStream) {
  EXPECT_FALSE(completion(R"({"prompt": "x", "stream_options": {"include_usage": true}})").ok());
  EXPECT_TRUE(
      completion(R"({"prompt": "x", "stream": true, "stream_options": {"include_usage": true}})")
          .ok());
}

TEST(ApiRequest, ATemplateInARequestIsRefused) {
  EXPECT_FALSE(chat(R"({"messages": [{}], "chat_template": "{{ 1 }}"})").ok());
  EXPECT_FALSE(chat(R"({"messages": [{}], "chat_template_kwargs": {"chat_template": "x"}})").ok());
}

TEST(ApiRequest, TopLogprobsNeedLogprobs) {
  EXPECT_FALSE(chat(R"({"messages": [{}], "top_logprobs": 3})").ok());
  EXPECT_EQ(chat(R"({"messages": [{}], "logprobs": true, "top_logprobs": 3})")->sampling.logprobs,
            3);
  EXPECT_FALSE(chat(R"({"messages": [{}], "logprobs": true, "top_logprobs": 21})").ok());
}

std::string nested(int depth) {
  return std::string(size_t(depth), '[') + std::string(size_t(depth), ']');
}

TEST(RequestJson, DepthIsBounded) {
  EXPECT_TRUE(parse_request_json("{\"a\": " + nested(kMaxJsonDepth - 1) + "}").ok());
  EXPECT_FALSE(parse_request_json("{\"a\": " + nested(kMaxJsonDepth) + "}").ok());
  EXPECT_FALSE(parse_request_json("{\"a\": " + nested(100000) + "}").ok());
}

TEST(RequestJson, BracketsInStringsAreNoDepth) {
  EXPECT_TRUE(parse_request_json("{\"a\": \"" + std::string(5000, '[') + "\\\"[[[\"}").ok());
}

TEST(RequestJson, MembersOfAnObjectAreBounded) {
  std::string json = "{";
  for (int i = 0; i <= kMaxJsonObjectMembers; ++i) json += fmt::format("\"{}\": 1, ", i);
  EXPECT_FALSE(parse_request_json(json + "\"z\": 1}").ok());
}

TEST(RequestJson, DamageIsAnErrorThatEchoesNothing) {
  for (const char* text : {"", "{", "[]", "nonsense-4711", "{\"a\": 1} nonsense-4711",
                           "{\"a\": 1e400}", "{\"a\": \"\\ud800\"}", "{\"a\": \"\xc3\x28\"}"}) {
    const auto body = parse_request_json(text);
    ASSERT_FALSE(body.ok()) << text;
    EXPECT_EQ(body.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(body.status().message(), ::testing::Not(HasSubstr("4711")));
  }
}

}  // namespace
}  // namespace rota
