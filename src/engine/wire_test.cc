#include "engine/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/engine_stats.h"
#include "engine/msgpack_shape.h"

namespace rota::wire {
namespace {

using ::testing::HasSubstr;

std::span<const uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

Message through(const Message& message) {
  FrameReader reader;
  reader.append(encode(message));
  return reader.next().value().value();
}

Submit full_submit() {
  EngineRequest request;
  request.id = std::string("id \xff\x00 of any bytes", 18);
  request.prompt = {0, 5, 201087, -1};
  request.priority = -3;
  request.cache_salt = std::string("\0\xfe", 2);
  request.trace_experts = true;
  request.generated = {7, 0, 1 << 30};
  request.sampling = {.temperature = 0.3,
                      .top_k = 7,
                      .top_p = 0.9,
                      .min_p = 0.1,
                      .presence_penalty = -1,
                      .frequency_penalty = 1.5,
                      .repetition_penalty = 1.1,
                      .logit_bias = {{4, -100.0}, {9, 2.5}},
                      .seed = std::numeric_limits<int64_t>::min(),
                      .max_tokens = int64_t{1} << 40,
                      .min_tokens = 3,
                      .ignore_eos = true,
                      .stop_token_ids = {2, 3},
                      .logprobs = 20,
                      .prompt_logprobs = 0};
  return {request};
}

Outputs full_outputs() {
  RequestOutput output;
  output.id = "x";
  output.tokens.push_back({.id = 7,
                           .logprobs = PositionLogprobs{{7, -0.5f, 1}, {8, -1.25f, 2}},
                           .experts = {1, 2, 31}});
  output.tokens.push_back({.id = 9});
  output.prompt_logprobs = {std::nullopt, PositionLogprobs{{3, -9999.0f, 200000}}};
  output.finish_reason = FinishReason::kError;
  output.stop_token = 9;
  output.cached_tokens = 640;
  output.status = Status(StatusCode::kDataLoss, "expert 3 of layer 2");
  return {{output, RequestOutput{}}};
}

TEST(Wire, RequestsSurviveTheWay) {
  const Submit sent = full_submit();
  const Submit got = std::get<Submit>(through(sent));
  EXPECT_EQ(got.request.id, sent.request.id);
  EXPECT_EQ(got.request.prompt, sent.request.prompt);
  EXPECT_EQ(got.request.priority, -3);
  EXPECT_EQ(got.request.cache_salt, sent.request.cache_salt);
  EXPECT_TRUE(got.request.trace_experts);
  EXPECT_EQ(got.request.generated, sent.request.generated);
  const SamplingParams& a = got.request.sampling;
  const SamplingParams& b = sent.request.sampling;
  EXPECT_EQ(a.temperature, b.temperature);
  EXPECT_EQ(a.top_k, b.top_k);
  EXPECT_EQ(a.top_p, b.top_p);
  EXPECT_EQ(a.min_p, b.min_p);
  EXPECT_EQ(a.presence_penalty, b.presence_penalty);
  EXPECT_EQ(a.frequency_penalty, b.frequency_penalty);
  EXPECT_EQ(a.repetition_penalty, b.repetition_penalty);
  EXPECT_EQ(a.logit_bias, b.logit_bias);
  EXPECT_EQ(a.seed, b.seed);
  EXPECT_EQ(a.max_tokens, b.max_tokens);
  EXPECT_EQ(a.min_tokens, b.min_tokens);
  EXPECT_EQ(a.ignore_eos, b.ignore_eos);
  EXPECT_EQ(a.stop_token_ids, b.stop_token_ids);
  EXPECT_EQ(a.logprobs, b.logprobs);
  EXPECT_EQ(a.prompt_logprobs, b.prompt_logprobs);
}

TEST(Wire, OutputsSurviveTheWay) {
  const Outputs got = std::get<Outputs>(through(full_outputs()));
  ASSERT_EQ(got.outputs.size(), 2u);
  const RequestOutput& output = got.outputs[0];
  ASSERT_EQ(output.tokens.size(), 2u);
  ASSERT_TRUE(output.tokens[0].logprobs.has_value());
  EXPECT_EQ((*output.tokens[0].logprobs)[1].logprob, -1.25f);
  EXPECT_EQ((*output.tokens[0].logprobs)[1].rank, 2);
  EXPECT_EQ(output.tokens[0].experts, (std::vector<int16_t>{1, 2, 31}));
  EXPECT_FALSE(output.tokens[1].logprobs.has_value());
  ASSERT_EQ(output.prompt_logprobs.size(), 2u);
  EXPECT_FALSE(output.prompt_logprobs[0].has_value());
  EXPECT_EQ((*output.prompt_logprobs[1])[0].rank, 200000);
  EXPECT_EQ(output.finish_reason, FinishReason::kError);
  EXPECT_EQ(output.stop_token, 9);
  EXPECT_EQ(output.cached_tokens, 640);
  EXPECT_EQ(output.status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(output.status.message(), "expert 3 of layer 2");
  EXPECT_TRUE(got.outputs[1].status.ok());
}

TEST(Wire, InfoAndStatisticsSurviveTheWay) {
  EngineInfo info;
  info.model_type = "gpt_oss";
  info.max_waiting = 77;
  info.choices = {"experts: ref", ""};
  info.default_sampling.top_p = 0.5;
  info.topology = {.tensor_parallel = 1,
                   .data_parallel = 2,
                   .expert_parallel = true,
                   .transport = "low_latency",
                   .expert_placement = "linear",
                   .ranks = {{.host = "one", .cpus = {}, .experts = {0, 1}},
                             {.rank = 1, .host = "two", .cpus = {4, 6}, .experts = {}}}};
  const Hello hello = std::get<Hello>(through(Hello{info}));
  EXPECT_EQ(hello.info.model_type, "gpt_oss");
  EXPECT_EQ(hello.info.max_waiting, 77);
  EXPECT_EQ(hello.info.choices, info.choices);
  EXPECT_EQ(hello.info.default_sampling.top_p, 0.5);
  EXPECT_TRUE(hello.info.topology.expert_parallel);
  EXPECT_EQ(hello.info.topology.transport, "low_latency");
  ASSERT_EQ(hello.info.topology.ranks.size(), 2u);
  EXPECT_EQ(hello.info.topology.ranks[1].host, "two");
  EXPECT_EQ(hello.info.topology.ranks[1].cpus, (std::vector<int32_t>{4, 6}));
  EXPECT_EQ(hello.info.topology.ranks[0].experts, (std::vector<int32_t>{0, 1}));

  Heartbeat heartbeat{.seconds_since_step = 1.5, .stats = empty_stats()};
  observe(heartbeat.stats.queue_time, 0.4);
  heartbeat.stats.expert_tokens = {{1, 2}, {3, 4}};
  RankStats& rank = heartbeat.stats.ranks.emplace_back();
  rank.operations = 7;
  rank.communication_seconds = 0.5;
  const Heartbeat got = std::get<Heartbeat>(through(heartbeat));
  EXPECT_EQ(got.seconds_since_step, 1.5);
  EXPECT_EQ(got.stats.queue_time.counts, heartbeat.stats.queue_time.counts);
  EXPECT_EQ(got.stats.queue_time.bounds, heartbeat.stats.queue_time.bounds);
  EXPECT_EQ(got.stats.expert_tokens, heartbeat.stats.expert_tokens);
  ASSERT_EQ(got.stats.ranks.size(), 1u);
  EXPECT_EQ(got.stats.ranks[0].operations, 7);
  EXPECT_EQ(got.stats.ranks[0].communication_seconds, 0.5);
}

TEST(Wire, FramesInAnyPortions) {
  const std::string frames = encode(full_submit()) + encode(Cancel{"a"}) + encode(full_outputs());
  for (const size_t portion : {size_t{1}, size_t{3}, size_t{1000}, frames.size()}) {
    FrameReader reader;
    std::vector<size_t> types;
    for (size_t at = 0; at < frames.size(); at += portion) {
      reader.append(std::string_view(frames).substr(at, portion));
      for (;;) {
        auto message = reader.next().value();
        if (!message) break;
        types.push_back(message->index());
      }
    }
    EXPECT_EQ(types, (std::vector<size_t>{Message(Submit{}).index(), Message(Cancel{}).index(),
                                          Message(Outputs{}).index()}));
  }
}

TEST(Wire, FrameLengthsAreBounded) {
  for (const uint32_t length : {uint32_t{0}, uint32_t{kMaxFrameBytes} + 1, ~uint32_t{0}}) {
    std::string bytes(4, '\0');
    std::memcpy(bytes.data(), &length, 4);
    FrameReader reader;
    reader.append(bytes);
    EXPECT_THAT(reader.next().status().message(), HasSubstr("expected between 1 and"));
  }
}

TEST(Wire, AnArrayOfAnArrayOfAnArrayDoesNotOverflowTheStack) {
  const std::string bomb(1 << 24, '\x91');
  EXPECT_THAT(decode(bytes_of(bomb)).status().message(), HasSubstr("deeper than"));
}

TEST(Wire, CountsThatLieAllocateNothing) {
  EXPECT_FALSE(decode(bytes_of(std::string("\xdd\xff\xff\xff\xff", 5))).ok());
  EXPECT_FALSE(decode(bytes_of(std::string("\xc6\xff\xff\xff\xff", 5))).ok());
  EXPECT_FALSE(decode(bytes_of(std::string("\x92\x02\xdd\xff\xff\xff\xff\xc0", 8))).ok());
}

// Right in form, wrong in content.
TEST(Wire, MembersAreCheckedOneByOne) {
  const auto payload = [](const nlohmann::json& json) {
    const std::vector<uint8_t> bytes = nlohmann::json::to_msgpack(json);
    return std::string(bytes.begin(), bytes.end());
  };
  const auto binary = [](const std::string& text) {
    return nlohmann::json::binary(std::vector<uint8_t>(text.begin(), text.end()));
  };
  using nlohmann::json;
  EXPECT_TRUE(decode(bytes_of(payload(json::array({2, json::array({binary("id")})})))).ok());
  const std::vector<json> wrong = {
      json::array({2}),                                                // no body
      json::array({99, json::array({binary("id")})}),                  // unknown type
      json::array({-1, json::array({binary("id")})}),                  // unknown type
      json::array({2, json::array({binary("id"), 1})}),                // a member too many
      json::array({2, json::array()}),                                 // one too few
      json::array({2, json::array({7})}),                              // a number for a string
      json::array({2, json::array({"text"})}),                         // text for bytes
      json::array({4, json::array({json::array({99, binary("")})})}),  // no such status code
      json(7),
      json(nullptr)};
  for (const json& it : wrong) EXPECT_FALSE(decode(bytes_of(payload(it))).ok()) << it;
}

// Every prefix and every single-bit error of real frames, and noise: an error or a message, never
// a crash.
TEST(Wire, DamagedFramesAreErrorsOrMessages) {
  std::mt19937 random(5);
  for (const Message& message : {Message(full_submit()), Message(full_outputs())}) {
    const std::string frame = encode(message).substr(4);
    for (size_t length = 0; length < frame.size(); ++length) {
      EXPECT_FALSE(decode(bytes_of(frame.substr(0, length))).ok());
    }
    for (size_t bit = 0; bit < frame.size() * 8; ++bit) {
      std::string damaged = frame;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
      static_cast<void>(decode(bytes_of(damaged)));
    }
  }
  for (int round = 0; round < 20000; ++round) {
    std::string noise(1 + random() % 40, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    static_cast<void>(decode(bytes_of(noise)));
  }
}

}  // namespace
}  // namespace rota::wire
