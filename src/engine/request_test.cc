#include "engine/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "engine/engine_client.h"

namespace rota {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kVocab = 640;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

EngineInfo small_engine() {
  EngineInfo info;
  info.vocab_size = kVocab;
  info.max_model_len = 256;
  info.max_sequence_tokens = 200;
  return info;
}

EngineRequest request_of(size_t prompt_tokens, int64_t max_tokens) {
  EngineRequest request;
  request.id = "request";
  request.prompt = std::vector<int32_t>(prompt_tokens, 7);
  request.sampling.max_tokens = max_tokens;
  return request;
}

struct HostileValue {
  std::string field;
  std::string name;
  std::function<void(SamplingParams&)> set;
};

class HostileSampling : public ::testing::TestWithParam<HostileValue> {};

TEST_P(HostileSampling, IsRefusedByName) {
  SamplingParams params;
  GetParam().set(params);
  const Status status = validate(params, kVocab);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), ::testing::StartsWith(GetParam().field + ":"));
}

std::vector<HostileValue> hostile_values() {
  std::vector<HostileValue> all;
  const auto number = [&](const std::string& field, const std::string& name,
                          double SamplingParams::* member, double value) {
    all.push_back({field, name, [=](SamplingParams& p) { p.*member = value; }});
  };
  const auto integer = [&](const std::string& field, const std::string& name,
                           int64_t SamplingParams::* member, int64_t value) {
    all.push_back({field, name, [=](SamplingParams& p) { p.*member = value; }});
  };
  number("temperature", "Nan", &SamplingParams::temperature, kNan);
  number("temperature", "Inf", &SamplingParams::temperature, kInf);
  number("temperature", "Negative", &SamplingParams::temperature, -1);
  number("top_p", "Zero", &SamplingParams::top_p, 0);
  number("top_p", "Two", &SamplingParams::top_p, 2);
  number("top_p", "Nan", &SamplingParams::top_p, kNan);
  number("min_p", "Negative", &SamplingParams::min_p, -0.1);
  number("min_p", "Two", &SamplingParams::min_p, 2);
  number("presence_penalty", "Huge", &SamplingParams::presence_penalty, 1e30);
  number("frequency_penalty", "Huge", &SamplingParams::frequency_penalty, -1e30);
  number("repetition_penalty", "Zero", &SamplingParams::repetition_penalty, 0);
  number("repetition_penalty", "Huge", &SamplingParams::repetition_penalty, 1e30);
  integer("top_k", "MinusTwo", &SamplingParams::top_k, -2);
  integer("max_tokens", "MinusOne", &SamplingParams::max_tokens, -1);
  integer("min_tokens", "AboveMaxTokens", &SamplingParams::min_tokens, 17);
  integer("min_tokens", "Negative", &SamplingParams::min_tokens, -1);
  integer("logprobs", "Million", &SamplingParams::logprobs, 1000000);
  integer("logprobs", "TwentyOne", &SamplingParams::logprobs, 21);
  integer("logprobs", "MinusTwo", &SamplingParams::logprobs, -2);
  integer("prompt_logprobs", "TwentyOne", &SamplingParams::prompt_logprobs, 21);
  const auto bias = [&](const std::string& name, int32_t token, double value) {
    all.push_back(
        {"logit_bias", name, [=](SamplingParams& p) { p.logit_bias = {{token, value}}; }});
  };
  bias("NegativeToken", -1, 1);
  bias("TokenBeyondVocabulary", kVocab, 1);
  bias("Huge", 3, 1e308);
  bias("Nan", 3, kNan);
  all.push_back(
      {"logit_bias", "Million", [](SamplingParams& p) { p.logit_bias.assign(1000000, {3, 1.0}); }});
  all.push_back(
      {"logit_bias", "Twice", [](SamplingParams& p) { p.logit_bias = {{3, 1.0}, {3, 2.0}}; }});
  all.push_back({"stop_token_ids", "Negative", [](SamplingParams& p) { p.stop_token_ids = {-1}; }});
  all.push_back({"stop_token_ids", "BeyondVocabulary",
                 [](SamplingParams& p) { p.stop_token_ids = {kVocab}; }});
  all.push_back({"stop_token_ids", "Million",
                 [](SamplingParams& p) { p.stop_token_ids.assign(1000000, 3); }});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Values, HostileSampling, ::testing::ValuesIn(hostile_values()),
                         [](const auto& info) { return info.param.field + info.param.name; });

TEST(Sampling, NeutralAndEdgeValuesAreAccepted) {
  SamplingParams params;
  EXPECT_TRUE(validate(params, kVocab).ok());
  params.temperature = 1e-30;
  params.top_k = -1;
  params.top_p = 1e-9;
  params.seed = std::numeric_limits<int64_t>::min();
  params.max_tokens = 0;
  params.logprobs = 20;
  params.logit_bias = {{0, -100.0}, {kVocab - 1, 100.0}};
  EXPECT_TRUE(validate(params, kVocab).ok());
  params.top_k = std::numeric_limits<int64_t>::max();
  params.seed = std::numeric_limits<int64_t>::max();
  EXPECT_TRUE(validate(params, kVocab).ok());
}

TEST(CheckRequest, ContextPlusOneNamesTheRealNumbers) {
  EXPECT_TRUE(check_request(request_of(100, 100), small_engine()).ok());
  const Status status = check_request(request_of(200, 57), small_engine());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              HasSubstr("This model's maximum context length is 256 tokens. However, you requested "
                        "257 tokens (200 in the messages, 57 in the completion)."));
}

TEST(CheckRequest, MaxTokensOfTwoToThe63DoesNotOverflow) {
  const Status status =
      check_request(request_of(10, std::numeric_limits<int64_t>::max()), small_engine());
  EXPECT_THAT(status.message(), HasSubstr("you requested 9223372036854775817 tokens"));
  EXPECT_FALSE(check_request(request_of(10, int64_t{1} << 31), small_engine()).ok());
}

TEST(CheckRequest, LargerThanAllKvIsRefusedAtAdmission) {
  const Status status = check_request(request_of(150, 60), small_engine());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              HasSubstr("210 tokens (150 in the messages, 60 in the completion)"));
  EXPECT_THAT(status.message(), HasSubstr("holds 200 tokens"));
}

TEST(CheckRequest, PromptMustBeTokensOfTheVocabulary) {
  EXPECT_THAT(check_request(request_of(0, 1), small_engine()).message(), HasSubstr("empty"));
  EngineRequest request = request_of(5, 1);
  request.prompt = {1, 2, 3, kVocab, 5};
  EXPECT_THAT(check_request(request, small_engine()).message(), HasSubstr("640 at index 3"));
  request.prompt = {1, 2, 3, -1, 5};
  EXPECT_FALSE(check_request(request, small_engine()).ok());
}

TEST(CheckRequest, AReplaysTokensAreOfTheVocabularyAndFewerThanAskedFor) {
  EngineRequest request = request_of(5, 3);
  request.generated = {1, 2};
  EXPECT_TRUE(check_request(request, small_engine()).ok());
  request.generated = {1, kVocab};
  EXPECT_THAT(check_request(request, small_engine()).message(),
              HasSubstr("generated: token id 640 at index 1"));
  request.generated = {1, 2, 3};
  EXPECT_THAT(check_request(request, small_engine()).message(),
              HasSubstr("3 tokens, but max_tokens is 3"));
}

TEST(TokenIds, CopiesShareWhatNobodyChanges) {
  EngineRequest first;
  first.prompt = std::vector<int32_t>(1000, 7);
  const EngineRequest second = first;
  EXPECT_EQ(second.prompt.vector().data(), first.prompt.vector().data());
  first.prompt = {};
  EXPECT_TRUE(first.prompt.empty());
  EXPECT_EQ(second.prompt.size(), 1000u);
  EXPECT_EQ(second.prompt[999], 7);
}

TEST(CheckRequest, PromptLogprobsOfAVeryLongPromptAreBounded) {
  EngineInfo info = small_engine();
  info.max_model_len = info.max_sequence_tokens = 1 << 20;
  EngineRequest request = request_of(250000, 1);
  request.sampling.prompt_logprobs = 1;
  EXPECT_TRUE(check_request(request, info).ok());
  request.sampling.prompt_logprobs = 20;
  EXPECT_THAT(check_request(request, info).message(), HasSubstr("5250000 entries"));
}

TEST(FinishReasons, AreOpenAisWords) {
  EXPECT_EQ(to_string(FinishReason::kStop), "stop");
  EXPECT_EQ(to_string(FinishReason::kLength), "length");
}

}  // namespace
}  // namespace rota
