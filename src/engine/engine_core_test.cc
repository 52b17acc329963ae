#include "engine/engine_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>
#include <set>

#include "base/log.h"
#include "engine/testing/damaged_model.h"
#include "engine/testing/small_engine.h"

namespace rota {
namespace {

using testing::Collected;
using testing::DamagedModel;
using testing::expect_same;
using testing::ExpertPlace;
using testing::generate;
using testing::generate_one;
using testing::golden;
using ::testing::HasSubstr;
using testing::request_of;
using testing::small_engine;
using testing::SmallEngineOptions;

// An engine and the core that steps it.
struct Running {
  std::unique_ptr<LoadedEngine> loaded;
  std::unique_ptr<EngineCore> core;

  EngineCore* operator->() const { return core.get(); }
  EngineCore& operator*() const { return *core; }
};

Running start(const std::string& model, const SmallEngineOptions& options = {}) {
  Running running;
  running.loaded = small_engine(model, options);
  running.core = EngineCore::make(*running.loaded).value();
  return running;
}

std::vector<int32_t> random_prompt(std::mt19937& random, size_t length, int64_t vocab = 500) {
  std::vector<int32_t> prompt(length);
  for (int32_t& token : prompt) {
    token = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
  }
  return prompt;
}

void shorten_prompt(EngineRequest& request, size_t length) {
  std::vector<int32_t> prompt = request.prompt.vector();
  prompt.resize(std::min(prompt.size(), length));
  request.prompt = std::move(prompt);
}

// A mix of everything: lengths around the block size, greedy and sampled, penalties and filters.
std::vector<EngineRequest> mixed_requests(uint32_t seed, size_t count) {
  std::mt19937 random(seed);
  std::vector<EngineRequest> requests;
  const std::vector<size_t> lengths = {1, 7, 63, 64, 65, 100, 128, 150, 200};
  for (size_t i = 0; i < count; ++i) {
    EngineRequest request = request_of(random_prompt(random, lengths[random() % lengths.size()]),
                                       1 + static_cast<int64_t>(random() % 40));
    SamplingParams& sampling = request.sampling;
    if (i % 3 != 0) {
      sampling.temperature = 0.9;
      sampling.seed = static_cast<int64_t>(i) * 1000003;
    }
    if (i % 4 == 1) sampling.top_p = 0.8;
    if (i % 4 == 2) sampling.top_k = 50;
    if (i % 5 == 3) {
      sampling.frequency_penalty = 0.7;
      sampling.repetition_penalty = 1.3;
    }
    if (i % 2 == 0) sampling.logprobs = 5;
    if (i % 7 == 6) sampling.prompt_logprobs = 2;
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<Collected> each_alone(const std::string& model,
                                  const std::vector<EngineRequest>& requests) {
  const Running engine = start(model, {.max_num_batched_tokens = 512, .prefix_caching = false});
  std::vector<Collected> all;
  for (const EngineRequest& request : requests) all.push_back(generate_one(*engine, request));
  return all;
}

void expect_all_same(const std::vector<Collected>& a, const std::vector<Collected>& b,
                     const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    expect_same(a[i], b[i], what + ", request " + std::to_string(i));
  }
}

class EveryModel : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Small, EveryModel, ::testing::ValuesIn(testing::small_models()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(EveryModel, GreedyTokensAreTheGoldens) {
  const nlohmann::json prompts = golden(GetParam())["prompts"];
  const Running engine = start(GetParam());
  std::vector<EngineRequest> requests;
  for (const auto& prompt : prompts) requests.push_back(request_of(prompt["ids"], 32));
  const std::vector<Collected> all = generate(*engine, requests);
  size_t i = 0;
  for (const auto& [name, prompt] : prompts.items()) {
    EXPECT_EQ(all[i].tokens, prompt["greedy"].get<std::vector<int32_t>>()) << name;
    EXPECT_EQ(all[i].finish_reason, FinishReason::kLength);
    ++i;
  }
  EXPECT_EQ(engine->kv_pages_used(), 0);
}

TEST_P(EveryModel, TheSameBitsAloneInABatchAndInAnyChunks) {
  const std::vector<EngineRequest> requests = mixed_requests(3, 8);
  const std::vector<Collected> alone = each_alone(GetParam(), requests);
  for (const int64_t chunk : {8, 16, 61, 512}) {
    const Running engine = start(GetParam(), {.max_num_batched_tokens = chunk});
    expect_all_same(alone, generate(*engine, requests), fmt::format("chunks of {}", chunk));
    EXPECT_EQ(engine->kv_pages_used(), 0);
  }
}

TEST_P(EveryModel, TheSameBitsUnderPreemption) {
  // Answers of two and three blocks: what fits at the start does not fit later.
  std::vector<EngineRequest> requests = mixed_requests(5, 6);
  for (EngineRequest& request : requests) {
    shorten_prompt(request, 70);
    request.sampling.max_tokens = 120;
  }
  const std::vector<Collected> alone = each_alone(GetParam(), requests);
  for (const bool caching : {true, false}) {
    const Running engine =
        start(GetParam(), {.pages = 12, .max_model_len = 192, .prefix_caching = caching});
    expect_all_same(alone, generate(*engine, requests), "preempted");
    EXPECT_GT(engine->stats().preemptions, 0);
    EXPECT_EQ(engine->kv_pages_used(), 0);
  }
}

TEST_P(EveryModel, TheSameBitsColdAndWarm) {
  std::vector<EngineRequest> requests = mixed_requests(7, 6);
  for (EngineRequest& request : requests) request.sampling.prompt_logprobs = -1;
  const std::vector<Collected> alone = each_alone(GetParam(), requests);
  const Running engine = start(GetParam());
  expect_all_same(alone, generate(*engine, requests), "cold");
  EXPECT_EQ(engine->stats().prefix_hits, 0);
  const std::vector<Collected> warm = generate(*engine, requests);
  expect_all_same(alone, warm, "warm");
  int64_t expected_hits = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto prompt = static_cast<int64_t>(requests[i].prompt.size());
    EXPECT_EQ(warm[i].cached_tokens, (prompt - 1) / 64 * 64);
    expected_hits += warm[i].cached_tokens;
  }
  EXPECT_GT(expected_hits, 0);
  EXPECT_EQ(engine->stats().prefix_hits, expected_hits);
  EXPECT_EQ(engine->kv_pages_used(), 0);
}

// As an engine that was started again sees it: some of the tokens are there, told by another.
EngineRequest replay_of(EngineRequest request, const Collected& whole, size_t told) {
  request.generated =
      std::vector<int32_t>(whole.tokens.begin(), whole.tokens.begin() + static_cast<int64_t>(told));
  return request;
}

// What is left of it to tell.
Collected rest_of(Collected whole, size_t told) {
  if (told == 0) return whole;
  const auto count = static_cast<int64_t>(told);
  whole.tokens.erase(whole.tokens.begin(), whole.tokens.begin() + count);
  whole.output_tokens.erase(whole.output_tokens.begin(), whole.output_tokens.begin() + count);
  whole.prompt_logprobs.clear();
  return whole;
}

TEST_P(EveryModel, AReplayGoesOnAsIfItHadNeverStopped) {
  std::vector<EngineRequest> requests = mixed_requests(17, 8);
  for (size_t i = 0; i < requests.size(); ++i) {
    SamplingParams& sampling = requests[i].sampling;
    sampling.max_tokens += 30;
    if (i % 2 == 1) sampling.presence_penalty = 0.4;
    if (i % 3 == 1) sampling.ignore_eos = false;
    if (i % 3 == 2) sampling.min_tokens = sampling.max_tokens / 2;
    for (int32_t token = 0; i % 3 == 2 && token < 60; ++token) {
      sampling.stop_token_ids.push_back(token);
    }
  }
  const std::vector<Collected> alone = each_alone(GetParam(), requests);
  std::mt19937 random(4);
  for (int round = 0; round < 3; ++round) {
    std::vector<EngineRequest> replays;
    std::vector<Collected> rests;
    for (size_t i = 0; i < requests.size(); ++i) {
      const size_t told = random() % alone[i].tokens.size();
      replays.push_back(replay_of(requests[i], alone[i], told));
      rests.push_back(rest_of(alone[i], told));
    }
    const Running engine = start(GetParam(), {.max_num_batched_tokens = 61});
    expect_all_same(rests, generate(*engine, replays), fmt::format("round {}", round));
    EXPECT_EQ(engine->kv_pages_used(), 0);
  }
}

TEST(EngineCore, AReplayCountsOnlyWhatItGenerates) {
  const Running engine = start("mixtral-bf16-h72");
  EngineRequest request = request_of(std::vector<int32_t>(70, 3), 10);
  const Collected whole = generate_one(*engine, request);
  const int64_t prompt_tokens = engine->stats().prompt_tokens;
  const Collected rest = generate_one(*engine, replay_of(request, whole, 7));
  expect_same(rest_of(whole, 7), rest, "replayed");
  EXPECT_EQ(engine->stats().generation_tokens, 13);
  EXPECT_EQ(engine->stats().prompt_tokens, prompt_tokens);
  EXPECT_LE(rest.cached_tokens, 70);
  EXPECT_LE(engine->stats().prefix_hits, engine->stats().prefix_queries);
  request.generated = std::vector<int32_t>(10, 1);
  EXPECT_THAT(engine->add(request, [](const RequestOutput&) {}).message(),
              HasSubstr("generated: 10 tokens, but max_tokens is 10"));
}

TEST(EngineCore, AnswersContinueFromTheCacheOfTheirOwnTokens) {
  std::mt19937 random(2);
  const Running engine = start("gptoss-mxfp4-h160");
  const std::vector<int32_t> prompt = random_prompt(random, 100);
  const Collected first = generate_one(*engine, request_of(prompt, 60));
  std::vector<int32_t> longer = prompt;
  longer.insert(longer.end(), first.tokens.begin(), first.tokens.begin() + 40);
  const Collected second = generate_one(*engine, request_of(longer, 20));
  EXPECT_EQ(second.cached_tokens, 128);
  EXPECT_EQ(second.tokens, std::vector<int32_t>(first.tokens.begin() + 40, first.tokens.end()));
}

// Where a state stands between its snapshots does not show: chunks, block sizes of snapshots, few
// slots, preemption and a warm cache all give the bits of a run alone.
TEST(RecurrentStates, TheSameBitsHoweverSnapshotsAreTaken) {
  const std::string model = "nemotron-bf16-h336";
  std::vector<EngineRequest> requests = mixed_requests(11, 8);
  for (EngineRequest& request : requests) request.sampling.max_tokens += 60;
  const std::vector<Collected> alone = each_alone(model, requests);
  for (const int64_t interval : {0, 64, 128}) {
    for (const int64_t snapshots : {0, 3, 40}) {
      const Running engine = start(model, {.pages = 24,
                                           .max_num_batched_tokens = 61,
                                           .max_model_len = 320,
                                           .mamba_block_size = interval,
                                           .snapshots = snapshots});
      for (const char* what : {"cold", "warm"}) {
        expect_all_same(alone, generate(*engine, requests),
                        fmt::format("{}, every {}, {} snapshots", what, interval, snapshots));
        EXPECT_EQ(engine->kv_pages_used(), 0);
        EXPECT_EQ(engine->state_slots_used(), 0);
      }
      // Fewer are pushed out before they can serve.
      if (snapshots == 40) {
        EXPECT_GT(engine->stats().prefix_hits, 0);
      }
    }
  }
}

TEST(RecurrentStates, AnAnswerGoesOnFromTheNearestSnapshot) {
  std::mt19937 random(2);
  const Running engine = start("nemotron-bf16-h336", {.mamba_block_size = 128});
  const std::vector<int32_t> prompt = random_prompt(random, 100);
  const Collected first = generate_one(*engine, request_of(prompt, 120));
  std::vector<int32_t> longer = prompt;
  longer.insert(longer.end(), first.tokens.begin(), first.tokens.begin() + 100);
  const Collected second = generate_one(*engine, request_of(longer, 20));
  EXPECT_EQ(second.cached_tokens, 128);  // 192 are known, 128 have a snapshot
  EXPECT_EQ(second.tokens, std::vector<int32_t>(first.tokens.begin() + 100, first.tokens.end()));
}

TEST(EngineCore, CacheSaltsDoNotShare) {
  std::mt19937 random(2);
  const Running engine = start("mixtral-bf16-h72");
  EngineRequest request = request_of(random_prompt(random, 130), 2);
  request.cache_salt = std::string("a\0\xff", 3);
  const Collected mine = generate_one(*engine, request);
  EngineRequest other = request;
  other.cache_salt = "b";
  const Collected theirs = generate_one(*engine, other);
  EXPECT_EQ(theirs.cached_tokens, 0);
  EXPECT_EQ(theirs.tokens, mine.tokens);
  EXPECT_EQ(generate_one(*engine, request).cached_tokens, 128);
}

// Arrivals, cancels and priorities at random over a cache that is far too small: everybody who was
// not cancelled gets the tokens of a run alone, and all pages come back.
TEST(EngineCore, RandomLifeUnderPressure) {
  std::vector<EngineRequest> requests = mixed_requests(11, 40);
  for (size_t i = 0; i < requests.size(); i += 2) {
    shorten_prompt(requests[i], 60);
    requests[i].sampling.max_tokens = 100;
  }
  const std::vector<Collected> alone = each_alone("gptoss-mxfp4-h160", requests);
  const Running engine =
      start("gptoss-mxfp4-h160",
            {.pages = 12, .max_num_seqs = 6, .max_num_batched_tokens = 48, .max_model_len = 256});
  std::mt19937 random(99);
  std::vector<Collected> all(requests.size());
  std::set<size_t> cancelled;
  size_t next = 0;
  int64_t steps = 0;
  while (next < requests.size() || engine->has_work()) {
    ASSERT_LT(++steps, 20000) << "somebody starves";
    for (auto arrivals = random() % 3; arrivals > 0 && next < requests.size(); --arrivals) {
      EngineRequest request = requests[next];
      request.priority = static_cast<int64_t>(random() % 3);
      Collected& mine = all[next++];
      ASSERT_TRUE(engine->add(request, [&](const RequestOutput& out) { mine.add(out); }).ok());
    }
    if (next > 0 && random() % 12 == 0) {
      const size_t victim = random() % next;
      if (all[victim].finish_reason == FinishReason::kNone) cancelled.insert(victim);
      engine->cancel(requests[victim].id);
    }
    engine->step();
  }
  EXPECT_EQ(engine->kv_pages_used(), 0);
  EXPECT_GT(engine->stats().preemptions, 0);
  EXPECT_GT(cancelled.size(), 2u);
  EXPECT_LT(cancelled.size(), 20u);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (cancelled.contains(i)) {
      ASSERT_LE(all[i].tokens.size(), alone[i].tokens.size());
      EXPECT_TRUE(std::equal(all[i].tokens.begin(), all[i].tokens.end(), alone[i].tokens.begin()));
      EXPECT_EQ(all[i].finish_reason, FinishReason::kNone);
    } else {
      expect_same(alone[i], all[i], "request " + std::to_string(i));
    }
  }
}

// The canary of slot reuse: the same request before, among and after strangers that fill and free
// every slot and page, with penalties, seeds and logprobs of their own.
TEST(EngineCore, SlotReuseLeaksNothing) {
  std::mt19937 random(31);
  const Running engine =
      start("gptoss-bf16-h160",
            {.pages = 24, .max_num_seqs = 4, .max_model_len = 256, .prefix_caching = false});
  EngineRequest canary = request_of(random_prompt(random, 70), 24, 0.8);
  canary.sampling.seed = 4711;
  canary.sampling.logprobs = 3;
  canary.sampling.presence_penalty = 0.5;
  const Collected expected = generate_one(*engine, canary);
  for (uint32_t round = 0; round < 6; ++round) {
    std::vector<EngineRequest> strangers = mixed_requests(100 + round, 6);
    const std::string aborted = strangers[1].id;
    Collected mine;
    for (EngineRequest& stranger : strangers) {
      stranger.sampling.logit_bias = {{5, 50.0}};
      ASSERT_TRUE(engine->add(stranger, [](const RequestOutput&) {}).ok());
    }
    ASSERT_TRUE(engine->add(canary, [&](const RequestOutput& out) { mine.add(out); }).ok());
    engine->step();
    engine->cancel(aborted);
    while (engine->has_work()) engine->step();
    expect_same(expected, mine, "canary of round " + std::to_string(round));
  }
  EXPECT_EQ(engine->kv_pages_used(), 0);
}

TEST(EngineCore, ASeedAloneAndInAMixedBatchGivesTheSameTokens) {
  std::mt19937 random(8);
  const Running engine = start("mixtral-bf16-h72");
  EngineRequest seeded = request_of(random_prompt(random, 20), 30, 1.0);
  seeded.sampling.seed = std::numeric_limits<int64_t>::min();
  const Collected alone = generate_one(*engine, seeded);
  std::vector<EngineRequest> batch = mixed_requests(12, 7);
  batch.insert(batch.begin() + 3, seeded);
  expect_same(alone, generate(*engine, batch)[3], "in a batch");
  EngineRequest other = seeded;
  other.sampling.seed = std::numeric_limits<int64_t>::max();
  EXPECT_NE(generate_one(*engine, other).tokens, alone.tokens);
}

TEST(EngineCore, PromptLogprobsAreThoseOfADecodeStep) {
  std::mt19937 random(14);
  const Running engine = start("gptoss-mxfp4-h288", {.max_num_batched_tokens = 32});
  const std::vector<int32_t> prompt = random_prompt(random, 90);
  EngineRequest answer = request_of(prompt, 30);
  answer.sampling.logprobs = 4;
  const Collected generated = generate_one(*engine, answer);

  std::vector<int32_t> whole = prompt;
  whole.insert(whole.end(), generated.tokens.begin(), generated.tokens.end());
  EngineRequest echo = request_of(whole, 0);
  echo.sampling.prompt_logprobs = 4;
  const Collected scored = generate_one(*engine, echo);
  EXPECT_EQ(scored.finish_reason, FinishReason::kLength);
  EXPECT_TRUE(scored.tokens.empty());
  EXPECT_EQ(scored.cached_tokens, 0);  // every position is computed
  ASSERT_EQ(scored.prompt_logprobs.size(), 120u);
  EXPECT_FALSE(scored.prompt_logprobs[0].has_value());
  for (size_t i = 0; i < 30; ++i) {
    const PositionLogprobs& decode = *generated.output_tokens[i].logprobs;
    const PositionLogprobs& prefill = *scored.prompt_logprobs[90 + i];
    ASSERT_EQ(decode.size(), prefill.size());
    for (size_t n = 0; n < decode.size(); ++n) {
      EXPECT_EQ(decode[n].token, prefill[n].token);
      EXPECT_EQ(decode[n].logprob, prefill[n].logprob) << "bits differ at token " << i;
    }
    EXPECT_EQ(prefill[0].rank, 1);  // greedy
    EXPECT_EQ(prefill[0].logprob, prefill[1].logprob);
  }
}

TEST(EngineCore, PromptLogprobsOfOneToken) {
  const Running engine = start("mixtral-bf16-h72");
  EngineRequest request = request_of({5}, 1);
  request.sampling.prompt_logprobs = 1;
  const Collected out = generate_one(*engine, request);
  ASSERT_EQ(out.prompt_logprobs.size(), 1u);
  EXPECT_FALSE(out.prompt_logprobs[0].has_value());
  EXPECT_EQ(out.tokens.size(), 1u);
}

TEST(EngineCore, TracedExpertsAreDistinctAndCounted) {
  const Running engine = start("gptoss-mxfp4-h288");
  std::mt19937 random(1);
  EngineRequest traced = request_of(random_prompt(random, 40), 12);
  traced.trace_experts = true;
  const std::vector<Collected> all =
      generate(*engine, {request_of(random_prompt(random, 10), 12), traced});
  const ModelConfig& config = engine.loaded->config;
  for (const OutputToken& token : all[1].output_tokens) {
    ASSERT_EQ(static_cast<int64_t>(token.experts.size()), config.layers * config.top_k);
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      const auto first = token.experts.begin() + layer * config.top_k;
      const std::set<int16_t> distinct(first, first + config.top_k);
      EXPECT_EQ(static_cast<int64_t>(distinct.size()), config.top_k);
      EXPECT_LT(*distinct.rbegin(), config.experts);
    }
  }
  EXPECT_TRUE(all[0].output_tokens[0].experts.empty());
  // Every token that was computed went to top_k experts of each layer; the warm-up is not counted.
  engine->refresh_expert_tokens();
  const int64_t computed = 10 + 11 + 40 + 11;
  for (const auto& layer : engine->stats().expert_tokens) {
    int64_t sum = 0;
    for (const int64_t count : layer) sum += count;
    EXPECT_EQ(sum, computed * config.top_k);
  }
}

TEST(EngineCore, EndAndStopTokensEndAndAreNamed) {
  const nlohmann::json p7 = golden("gptoss-mxfp4-h288")["prompts"]["p7"];
  const std::vector<int32_t> greedy = p7["greedy"];
  const Running engine = start("gptoss-mxfp4-h288");
  EngineRequest request = request_of(p7["ids"], 32);
  request.sampling.stop_token_ids = {greedy[9]};
  const Collected out = generate_one(*engine, request);
  EXPECT_EQ(out.finish_reason, FinishReason::kStop);
  EXPECT_EQ(out.stop_token, greedy[9]);
  EXPECT_EQ(out.tokens, std::vector<int32_t>(greedy.begin(), greedy.begin() + 10));

  request.sampling.min_tokens = 15;  // banned until then: another token takes its place
  const Collected longer = generate_one(*engine, request);
  EXPECT_GE(longer.tokens.size(), 15u);
  EXPECT_EQ(std::count(longer.tokens.begin(), longer.tokens.begin() + 15, greedy[9]), 0);

  EngineRequest forced = request_of(p7["ids"], 32);  // end-of-sequence is token 2
  forced.sampling.ignore_eos = false;
  forced.sampling.logit_bias = {{2, 100.0}};
  const Collected ended = generate_one(*engine, forced);
  EXPECT_EQ(ended.finish_reason, FinishReason::kStop);
  EXPECT_EQ(ended.stop_token, 2);
  forced.sampling.ignore_eos = true;
  EXPECT_EQ(generate_one(*engine, forced).tokens.size(), 32u);
}

TEST(EngineCore, AllBannedEndsThatRequestAndDisturbsNobody) {
  std::mt19937 random(6);
  const Running engine = start("gptoss-mxfp4-h288");
  const EngineRequest good = request_of(random_prompt(random, 30), 10);
  const Collected alone = generate_one(*engine, good);
  EngineRequest banned = request_of(random_prompt(random, 30), 10);
  banned.sampling.min_tokens = 5;
  for (int32_t token = 0; token < 640; ++token) banned.sampling.stop_token_ids.push_back(token);
  const std::vector<Collected> all = generate(*engine, {banned, good});
  EXPECT_EQ(all[0].finish_reason, FinishReason::kError);
  EXPECT_EQ(all[0].status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(all[0].status.message(), HasSubstr("no token is left"));
  expect_same(alone, all[1], "the neighbour");
  EXPECT_EQ(engine->kv_pages_used(), 0);
}

// How many tokens of a request each expert of each layer serves.
std::vector<std::vector<int64_t>> experts_used(const Running& engine,
                                               const EngineRequest& request) {
  engine->refresh_expert_tokens();
  const auto before = engine->stats().expert_tokens;
  generate_one(*engine, request);
  engine->refresh_expert_tokens();
  auto used = engine->stats().expert_tokens;
  for (size_t layer = 0; layer < used.size(); ++layer) {
    for (size_t e = 0; e < used[layer].size(); ++e) used[layer][e] -= before[layer][e];
  }
  return used;
}

Running start_in(const std::string& dir, const SmallEngineOptions& small) {
  EngineOptions options = testing::small_options("gptoss-mxfp4-h160", small);
  options.model = dir;
  Running running;
  running.loaded = std::make_unique<LoadedEngine>(load_engine(options).value());
  running.core = EngineCore::make(*running.loaded).value();
  return running;
}

// Three requests and an expert that only the second of them needs: in its prompt, or not before its
// decoding.
struct ExpertOfOne {
  std::vector<EngineRequest> requests;
  std::vector<Collected> alone;
  ExpertPlace place;
};

ExpertOfOne find_expert_of_one(const Running& engine, bool in_prompt) {
  std::mt19937 random(77);
  for (int round = 0; round < 500; ++round) {
    ExpertOfOne found;
    found.requests = {request_of(random_prompt(random, 1), 2),
                      request_of(random_prompt(random, 2), 6),
                      request_of(random_prompt(random, 1), 2)};
    EngineRequest prompt_alone = found.requests[1];
    prompt_alone.sampling.max_tokens = 1;
    const auto first = experts_used(engine, found.requests[0]);
    const auto prompt = experts_used(engine, prompt_alone);
    const auto whole = experts_used(engine, found.requests[1]);
    const auto last = experts_used(engine, found.requests[2]);
    for (size_t layer = 0; layer < whole.size(); ++layer) {
      for (size_t e = 0; e < whole[layer].size(); ++e) {
        if (first[layer][e] + last[layer][e] > 0 || whole[layer][e] == 0) continue;
        if ((prompt[layer][e] > 0) != in_prompt) continue;
        found.place = {layer, e};
        for (const EngineRequest& it : found.requests) {
          found.alone.push_back(generate_one(*engine, it));
        }
        return found;
      }
    }
  }
  ADD_FAILURE() << "no expert is needed by one request alone";
  return {};
}

TEST(EngineCore, ADamagedExpertFailsOnlyTheRequestsThatNeedIt) {
  const SmallEngineOptions options{.prefix_caching = false};
  const Running whole = start("gptoss-mxfp4-h160", options);
  for (const bool in_prompt : {true, false}) {
    SCOPED_TRACE(in_prompt ? "needed in the prompt" : "needed in decoding");
    const ExpertOfOne it = find_expert_of_one(whole, in_prompt);
    ASSERT_EQ(it.alone.size(), 3u);
    const DamagedModel model("gptoss-mxfp4-h160", it.place, whole.loaded->config.experts);
    const Running damaged = start_in(model.dir(), options);  // though the warm-up may meet it
    for (int again = 0; again < 2; ++again) {
      const std::vector<Collected> all = generate(*damaged, it.requests);
      expect_same(it.alone[0], all[0], "the one before");
      expect_same(it.alone[2], all[2], "the one behind");
      EXPECT_EQ(all[1].finish_reason, FinishReason::kError);
      EXPECT_EQ(all[1].status.code(), StatusCode::kDataLoss);
      EXPECT_THAT(all[1].status.message(), HasSubstr(model.tensor()));
      EXPECT_EQ(all[1].tokens.empty(), in_prompt);
      EXPECT_LT(all[1].tokens.size(), it.alone[1].tokens.size());
      EXPECT_TRUE(
          std::equal(all[1].tokens.begin(), all[1].tokens.end(), it.alone[1].tokens.begin()));
      EXPECT_EQ(damaged->kv_pages_used(), 0);
    }
  }
}

TEST(EngineCore, AStepThatWaitsForPagesIsCountedAndWarnedOf) {
  const std::unique_ptr<LoadedEngine> loaded = small_engine("mixtral-bf16-h72");
  int64_t faults = 1000;  // of the loading
  int64_t each_step = 0;
  const auto core = EngineCore::make(*loaded, [&] {
                      faults += each_step;  // asked at the beginning and at the end of a step
                      return faults;
                    }).value();
  log::set_level(log::Level::kInfo);  // whatever the environment says
  const auto run = [&] {
    ::testing::internal::CaptureStderr();
    generate_one(*core, request_of({1, 2, 3}, 2));
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(run(), "");
  EXPECT_EQ(core->stats().major_faults, 0);
  each_step = 7;
  EXPECT_THAT(run(), HasSubstr("a step waited for the disk 7 times"));
  EXPECT_EQ(core->stats().major_faults, 14);
}

TEST(EngineCore, TooLargeRequestsAreRefusedWithTheRealNumbers) {
  const Running engine = start("gptoss-mxfp4-h288", {.pages = 9, .max_model_len = 256});
  EXPECT_EQ(engine.loaded->kv.max_sequence_tokens, 384);  // 6 pages and 3 of the window
  const Status status =
      engine->add(request_of(std::vector<int32_t>(200, 1), 57), [](const RequestOutput&) {});
  EXPECT_THAT(status.message(), HasSubstr("maximum context length is 256 tokens"));
  EXPECT_FALSE(engine->has_work());
}

TEST(EngineCore, OneSequenceMayFillTheWholeCache) {
  const Running engine =
      start("gptoss-mxfp4-h288", {.pages = 9, .max_num_batched_tokens = 384, .max_model_len = 384});
  const Collected out = generate_one(*engine, request_of(std::vector<int32_t>(300, 1), 84));
  EXPECT_EQ(out.tokens.size(), 84u);
  EXPECT_EQ(engine->kv_pages_used(), 0);
}

TEST(EngineCore, QueueIsBoundedAndIdsAreUnique) {
  const Running engine = start("mixtral-bf16-h72");
  const int64_t places = engine->info().max_num_seqs + engine->info().max_waiting;
  const EngineRequest first = request_of({1, 2, 3}, 4);
  int finished = 0;
  const auto count = [&](const RequestOutput& output) {
    finished += output.finish_reason == FinishReason::kLength ? 1 : 0;
  };
  ASSERT_TRUE(engine->add(first, count).ok());
  EXPECT_THAT(engine->add(first, count).message(), HasSubstr("is in use"));
  for (int64_t i = 1; i < places; ++i) ASSERT_TRUE(engine->add(request_of({4, 5}, 2), count).ok());
  EXPECT_EQ(engine->add(request_of({4, 5}, 2), count).code(), StatusCode::kResourceExhausted);
  while (engine->has_work()) engine->step();
  EXPECT_EQ(finished, places);
}

TEST(EngineCore, PriorityRunsFirst) {
  const Running engine = start("mixtral-bf16-h72", {.max_num_seqs = 1});
  std::vector<std::string> order;
  for (const int64_t priority : {5, 1, 3}) {
    EngineRequest request = request_of({1, 2, 3}, 3);
    request.id = "priority-" + std::to_string(priority);
    request.priority = priority;
    ASSERT_TRUE(engine
                    ->add(request,
                          [&](const RequestOutput& output) {
                            if (output.finish_reason != FinishReason::kNone) {
                              order.push_back(output.id);
                            }
                          })
                    .ok());
  }
  while (engine->has_work()) engine->step();
  EXPECT_EQ(order, (std::vector<std::string>{"priority-1", "priority-3", "priority-5"}));
}

TEST(EngineCore, CancelFromWithinAnOutput) {
  std::mt19937 random(3);
  const Running engine = start("mixtral-bf16-h72");
  const std::vector<EngineRequest> requests = mixed_requests(20, 4);
  int outputs = 0;
  for (const EngineRequest& request : requests) {
    ASSERT_TRUE(engine
                    ->add(request,
                          [&](const RequestOutput&) {
                            ++outputs;
                            for (const EngineRequest& it : requests) engine->cancel(it.id);
                          })
                    .ok());
  }
  while (engine->has_work()) engine->step();
  EXPECT_EQ(outputs, 1);
  EXPECT_EQ(engine->kv_pages_used(), 0);
}

TEST(EngineCore, StatisticsAddUp) {
  const Running engine = start("mixtral-bf16-h72");
  EXPECT_EQ(engine->stats().prompt_tokens, 0);  // the warm-up does not count
  generate(*engine, {request_of(std::vector<int32_t>(100, 3), 5), request_of({1, 2}, 7)});
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.prompt_tokens, 102);
  EXPECT_EQ(stats.generation_tokens, 12);
  EXPECT_EQ(stats.prefix_queries, 102);
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.kv_usage, 0);
  const auto total = [](const Histogram& histogram) {
    int64_t sum = 0;
    for (const int64_t count : histogram.counts) sum += count;
    return sum;
  };
  EXPECT_EQ(total(stats.iteration_tokens), stats.steps);
  EXPECT_EQ(stats.iteration_tokens.sum, 102 + 4 + 6);
  EXPECT_EQ(total(stats.queue_time), 2);
  EXPECT_EQ(total(stats.decode_time), 2);
}

}  // namespace
}  // namespace rota
