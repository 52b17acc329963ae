#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "engine/random.h"

namespace rota {
namespace {

using ::testing::HasSubstr;

std::vector<float> random_row(size_t vocab, uint32_t seed, float deviation = 2.5f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> row(vocab);
  for (float& logit : row) logit = normal(generator);
  return row;
}

struct Draw {
  SamplingParams params = {};
  std::vector<int32_t> tokens = {0};
  int64_t prompt_tokens = 1;
  std::vector<int32_t> stop_tokens = {};
  uint64_t seed = 0;

  SamplingInput input() const {
    return {
        .params = &params,
        .history = {.tokens = tokens, .prompt_tokens = prompt_tokens, .stop_tokens = stop_tokens},
        .seed = seed};
  }
};

int32_t sample_one(std::vector<float> row, const Draw& draw) {
  Sampler sampler(static_cast<int64_t>(row.size()), 1);
  Sampled sampled;
  const Status status = sampler.sample(0, row, draw.input(), sampled);
  EXPECT_TRUE(status.ok()) << status.message();
  return sampled.token;
}

std::vector<double> softmax(const std::vector<float>& row, double temperature) {
  const float maximum = *std::max_element(row.begin(), row.end());
  std::vector<double> p;
  for (const float logit : row) {
    p.push_back(
        std::exp((static_cast<double>(logit) - static_cast<double>(maximum)) / temperature));
  }
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= total;
  return p;
}

// The distribution that the definitions give, by sorting everything.
std::vector<double> reference_distribution(const std::vector<float>& row,
                                           const SamplingParams& params) {
  std::vector<double> p = softmax(row, params.temperature);
  const double best = *std::max_element(p.begin(), p.end());
  for (double& value : p) value = value >= params.min_p * best ? value : 0;
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return p[a] != p[b] ? p[a] > p[b] : a < b; });
  if (params.top_k > 0) {
    for (size_t i = static_cast<size_t>(params.top_k); i < order.size(); ++i) p[order[i]] = 0;
  }
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  double before = 0;
  for (const size_t i : order) {
    const double weight = p[i];
    if (before > 0 && before >= params.top_p * total) p[i] = 0;
    before += weight;
  }
  const double kept = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= kept;
  return p;
}

// Pearson's statistic of n draws, one for each position, against a distribution; -1 if a token of
// probability 0 was drawn.
double chi_square(const std::vector<float>& row, const SamplingParams& params, int n,
                  int* degrees_of_freedom) {
  const std::vector<double> p = reference_distribution(row, params);
  std::vector<int> seen(row.size(), 0);
  Sampler sampler(static_cast<int64_t>(row.size()), 1);
  Draw draw{.params = params, .seed = 12345};
  Sampled sampled;
  for (int i = 0; i < n; ++i) {
    draw.tokens.assign(static_cast<size_t>(i) + 1, 0);
    std::vector<float> copy = row;
    EXPECT_TRUE(sampler.sample(0, copy, draw.input(), sampled).ok());
    ++seen[static_cast<size_t>(sampled.token)];
  }
  double statistic = 0;
  double rest_expected = 0;  // cells too small for the statistic, as one
  int rest_seen = 0;
  *degrees_of_freedom = -1;
  for (size_t i = 0; i < p.size(); ++i) {
    const double expected = p[i] * n;
    if (p[i] == 0 && seen[i] > 0) return -1;
    if (expected < 5) {
      rest_expected += expected;
      rest_seen += seen[i];
      continue;
    }
    statistic += (seen[i] - expected) * (seen[i] - expected) / expected;
    ++*degrees_of_freedom;
  }
  if (rest_expected >= 5) {
    statistic += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
    ++*degrees_of_freedom;
  }
  return statistic;
}

// The seeds are fixed, so this passes or fails for good; the bound is 5 standard deviations.
void expect_distribution(const SamplingParams& params) {
  const std::vector<float> row = random_row(50, 7, 1.5f);
  int degrees = 0;
  const double statistic = chi_square(row, params, 4000, &degrees);
  EXPECT_GE(statistic, 0) << "a filtered token was drawn";
  ASSERT_GE(degrees, 1);
  EXPECT_LT(statistic, degrees + 5 * std::sqrt(2.0 * degrees));
}

TEST(SamplerDistribution, Temperature) {
  expect_distribution({});
  expect_distribution({.temperature = 0.5});
  expect_distribution({.temperature = 2.0});
}
TEST(SamplerDistribution, TopK) { expect_distribution({.top_k = 5}); }
TEST(SamplerDistribution, TopP) { expect_distribution({.top_p = 0.7}); }
TEST(SamplerDistribution, MinP) { expect_distribution({.min_p = 0.01}); }
TEST(SamplerDistribution, AllFiltersTogether) {
  expect_distribution({.temperature = 1.3, .top_k = 20, .top_p = 0.9, .min_p = 0.02});
}

TEST(Sampler, TopPOfAFlatDistributionLooksBeyondTheFirstCandidates) {
  const std::vector<float> row(20000, 0.25f);  // all equal: the nucleus is the first half
  int32_t largest = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Draw draw{.params = {.top_p = 0.5}, .seed = seed};
    largest = std::max(largest, sample_one(row, draw));
  }
  EXPECT_LT(largest, 10001);
  EXPECT_GT(largest, 9000);
}

TEST(Sampler, TinyTopPAndTopKOneAreGreedy) {
  const std::vector<float> row = random_row(300, 3);
  const int32_t best = row_maximum(row).token;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    EXPECT_EQ(sample_one(row, {.params = {.top_p = 1e-12}, .seed = seed}), best);
    EXPECT_EQ(sample_one(row, {.params = {.top_k = 1}, .seed = seed}), best);
    EXPECT_EQ(sample_one(row, {.params = {.min_p = 1.0}, .seed = seed}), best);
    EXPECT_EQ(sample_one(row, {.params = {.temperature = 1e-30}, .seed = seed}), best);
    EXPECT_EQ(sample_one(row, {.params = {.temperature = 0}, .seed = seed}), best);
  }
}

TEST(Sampler, TiesGoToTheLowestId) {
  std::vector<float> row(100, 0.0f);
  row[40] = row[17] = row[99] = 3.0f;
  EXPECT_EQ(sample_one(row, {.params = {.temperature = 0}}), 17);
  EXPECT_EQ(sample_one(row, {.params = {.top_k = 1}, .seed = 9}), 17);
}

TEST(Sampler, HugeLogitsAndTinyTemperaturesStayFinite) {
  std::vector<float> row = {3e38f, -3e38f, 0.0f};
  EXPECT_EQ(sample_one(row, {.params = {.temperature = 2e-5}}), 0);
  EXPECT_EQ(sample_one(row, {.params = {}}), 0);
}

TEST(Sampler, SeedAndPositionDecide) {
  const std::vector<float> row = random_row(1000, 11);
  std::vector<int32_t> first;
  std::vector<int32_t> other;
  for (size_t position = 1; position < 40; ++position) {
    Draw draw{.tokens = std::vector<int32_t>(position, 1), .seed = 5};
    const int32_t token = sample_one(row, draw);
    EXPECT_EQ(token, sample_one(row, draw));
    first.push_back(token);
    draw.seed = 6;
    other.push_back(sample_one(row, draw));
  }
  EXPECT_NE(first, other);
  EXPECT_GT(std::count_if(first.begin(), first.end(), [&](int32_t t) { return t != first[0]; }), 5);
}

TEST(Sampler, SeedsAtTheEdgesOfInt64) {
  const std::vector<float> row = random_row(100, 2);
  for (const int64_t seed : {std::numeric_limits<int64_t>::min(), int64_t{-1}, int64_t{0},
                             std::numeric_limits<int64_t>::max()}) {
    const Draw draw{.seed = static_cast<uint64_t>(seed)};
    EXPECT_EQ(sample_one(row, draw), sample_one(row, draw));
  }
}

// Penalties, written down naively.
std::vector<float> penalised(std::vector<float> row, const Draw& draw) {
  const SamplingParams& p = draw.params;
  for (size_t id = 0; id < row.size(); ++id) {
    const auto token = static_cast<int32_t>(id);
    const auto generated = draw.tokens.begin() + draw.prompt_tokens;
    if (std::count(draw.tokens.begin(), draw.tokens.end(), token) > 0) {
      const auto penalty = static_cast<float>(p.repetition_penalty);
      row[id] = row[id] > 0 ? row[id] / penalty : row[id] * penalty;
    }
    const auto count = std::count(generated, draw.tokens.end(), token);
    if (count > 0) {
      row[id] -= static_cast<float>(p.frequency_penalty * static_cast<double>(count));
      row[id] -= static_cast<float>(p.presence_penalty);
    }
  }
  return row;
}

TEST(Penalties, EqualBruteForceAndLeaveNoCounts) {
  std::mt19937 generator(4);
  std::uniform_int_distribution<int32_t> token(0, 39);
  std::uniform_real_distribution<double> penalty(-2, 2);
  std::vector<int32_t> counts(40, 0);
  for (int round = 0; round < 200; ++round) {
    Draw draw;
    draw.params.presence_penalty = penalty(generator);
    draw.params.frequency_penalty = penalty(generator);
    draw.params.repetition_penalty = round % 3 == 0 ? 1.0 : 2.5 + penalty(generator);
    draw.tokens.resize(static_cast<size_t>(1 + round % 60));
    for (int32_t& id : draw.tokens) id = token(generator);
    draw.prompt_tokens = static_cast<int64_t>(draw.tokens.size()) / 2 + 1;
    draw.prompt_tokens = std::min(draw.prompt_tokens, static_cast<int64_t>(draw.tokens.size()));
    std::vector<float> row = random_row(40, static_cast<uint32_t>(round));
    const std::vector<float> expected = penalised(row, draw);
    apply_logits_processors(draw.params, draw.input().history, row, counts);
    EXPECT_EQ(row, expected);
    EXPECT_EQ(std::count(counts.begin(), counts.end(), 0), 40);
  }
}

TEST(LogitBias, IsAddedBeforeTheChoice) {
  std::vector<float> row(20, 0.0f);
  row[3] = 1;
  EXPECT_EQ(sample_one(row, {.params = {.temperature = 0, .logit_bias = {{9, 2.0}}}}), 9);
  EXPECT_EQ(sample_one(row, {.params = {.temperature = 0, .logit_bias = {{3, -100.0}}}}), 0);
}

TEST(MinTokens, BansStopTokensUntilThen) {
  std::vector<float> row(20, 0.0f);
  row[3] = 5;
  row[4] = 1;
  Draw draw{.params = {.temperature = 0, .min_tokens = 2}, .stop_tokens = {3}};
  EXPECT_EQ(sample_one(row, draw), 4);
  draw.tokens = {0, 7, 7};  // two generated
  EXPECT_EQ(sample_one(row, draw), 3);
}

TEST(Sampler, AllBannedIsAnErrorOfThatRequest) {
  std::vector<float> row(8, 0.0f);
  Draw draw{.params = {.min_tokens = 1}};
  draw.stop_tokens.resize(8);
  std::iota(draw.stop_tokens.begin(), draw.stop_tokens.end(), 0);
  Sampler sampler(8, 1);
  Sampled sampled;
  const Status status = sampler.sample(0, row, draw.input(), sampled);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("no token is left"));
}

TEST(Sampler, NonFiniteLogitsAreAnErrorThatNamesThePosition) {
  Sampler sampler(1000, 1);
  Sampled sampled;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    for (const size_t where : {size_t{0}, size_t{500}, size_t{999}}) {
      std::vector<float> row = random_row(1000, 1);
      row[where] = bad;
      const Draw draw;
      const Status status = sampler.sample(0, row, draw.input(), sampled);
      EXPECT_EQ(status.code(), StatusCode::kDataLoss);
      EXPECT_THAT(status.message(), HasSubstr("position 1"));
    }
  }
}

TEST(Logprobs, AreOfTheRawRowWithRanks) {
  std::vector<float> row = random_row(500, 8);
  const std::vector<double> p = softmax(row, 1.0);
  std::vector<size_t> order(row.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return row[a] > row[b]; });
  Draw draw{.params = {.temperature = 0.7, .repetition_penalty = 3.0, .logprobs = 5}};
  draw.params.logit_bias = {{static_cast<int32_t>(order[300]), 100.0}};  // forces an unlikely one
  Sampler sampler(500, 1);
  Sampled sampled;
  ASSERT_TRUE(sampler.sample(0, row, draw.input(), sampled).ok());
  EXPECT_EQ(sampled.token, static_cast<int32_t>(order[300]));
  ASSERT_TRUE(sampled.logprobs.has_value());
  const PositionLogprobs& logprobs = *sampled.logprobs;
  ASSERT_EQ(logprobs.size(), 6u);
  EXPECT_EQ(logprobs[0].token, sampled.token);
  EXPECT_EQ(logprobs[0].rank, 301);
  EXPECT_NEAR(logprobs[0].logprob, std::log(p[order[300]]), 1e-4);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(logprobs[i + 1].token, static_cast<int32_t>(order[i]));
    EXPECT_EQ(logprobs[i + 1].rank, static_cast<int64_t>(i) + 1);
    EXPECT_NEAR(logprobs[i + 1].logprob, std::log(p[order[i]]), 1e-4);
  }
}

TEST(Logprobs, ChosenEqualsTheMaximumExactlyWhenGreedy) {
  std::vector<float> row = random_row(700, 5);
  Draw draw{.params = {.temperature = 0, .logprobs = 1}};
  Sampler sampler(700, 1);
  Sampled sampled;
  ASSERT_TRUE(sampler.sample(0, row, draw.input(), sampled).ok());
  EXPECT_EQ((*sampled.logprobs)[0].logprob, (*sampled.logprobs)[1].logprob);
  EXPECT_EQ((*sampled.logprobs)[0].token, (*sampled.logprobs)[1].token);
}

TEST(Logprobs, AreFinite) {
  std::vector<float> row(50, -1e30f);
  row[4] = 1e30f;
  std::vector<Candidate> scratch;
  for (const TokenLogprob& it : position_logprobs(row, 7, 20, scratch)) {
    EXPECT_TRUE(std::isfinite(it.logprob));
    EXPECT_GE(it.logprob, -9999.0f);
  }
}

TEST(SelectTop, HeapAndPartitionAgreeWithSorting) {
  std::vector<float> row = random_row(3000, 21);
  for (size_t i = 0; i < row.size(); ++i) row[i] = std::round(row[i] * 4);  // many ties
  std::vector<Candidate> all;
  for (size_t i = 0; i < row.size(); ++i) all.push_back({row[i], static_cast<int32_t>(i)});
  std::sort(all.begin(), all.end());
  std::vector<Candidate> top;
  for (const int64_t n : {0, 1, 20, 1024, 1025, 2999, 3000, 5000}) {
    select_top(row, n, top);
    ASSERT_EQ(top.size(), std::min<size_t>(static_cast<size_t>(n), 3000));
    for (size_t i = 0; i < top.size(); ++i) ASSERT_EQ(top[i].token, all[i].token);
  }
}

// Known answers of the Random123 distribution (kat_vectors, philox4x32 10).
TEST(Philox, KnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

}  // namespace
}  // namespace rota
