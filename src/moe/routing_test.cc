#include "moe/routing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tensor/testing/golden_file.h"

namespace rota {
namespace {

RouterConfig router(RouterKind kind, int64_t experts, int64_t top_k) {
  RouterConfig config;
  config.kind = kind;
  config.experts = experts;
  config.top_k = top_k;
  return config;
}

struct Chosen {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Chosen choose(const RouterConfig& config, std::vector<float> logits, std::vector<float> bias = {}) {
  Chosen out{std::vector<int32_t>(static_cast<size_t>(config.top_k), -1),
             std::vector<float>(static_cast<size_t>(config.top_k), NAN)};
  route_token(config, logits, bias, out.ids, out.weights);
  return out;
}

struct GoldenCase {
  std::string name;
  RouterConfig config;
};

GoldenCase golden_case(std::string name, RouterConfig config, bool renormalise, float factor,
                       int64_t groups = 1, int64_t kept = 1) {
  config.renormalise = renormalise;
  config.scaling_factor = factor;
  config.groups = groups;
  config.groups_kept = kept;
  return {std::move(name), config};
}

class RoutingGolden : public ::testing::TestWithParam<GoldenCase> {};
INSTANTIATE_TEST_SUITE_P(
    Kinds, RoutingGolden,
    ::testing::Values(
        golden_case("topk_softmax", router(RouterKind::kTopkSoftmax, 8, 4), true, 1),
        golden_case("softmax_topk_renorm", router(RouterKind::kSoftmaxTopk, 10, 3), true, 1),
        golden_case("softmax_topk_raw", router(RouterKind::kSoftmaxTopk, 12, 4), false, 1),
        golden_case("sigmoid_bias", router(RouterKind::kSigmoidBiasGroups, 16, 6), true, 2.5f),
        golden_case("sigmoid_bias_groups", router(RouterKind::kSigmoidBiasGroups, 24, 5), true,
                    2.5f, 6, 3),
        golden_case("sigmoid_bias_raw", router(RouterKind::kSigmoidBiasGroups, 16, 6), false, 1),
        golden_case("sigmoid_bias_topk22", router(RouterKind::kSigmoidBiasGroups, 40, 22), true,
                    5)),
    [](const auto& info) { return info.param.name; });

// gate [E, H] times one token, in double.
std::vector<float> logits_of(const testing::GoldenFile& golden, const std::string& name, size_t t) {
  const auto x = golden.floats(name + ".x");
  const auto gate = golden.floats(name + ".gate");
  const auto width = static_cast<size_t>(golden.shape(name + ".x")[1]);
  const auto experts = static_cast<size_t>(golden.shape(name + ".gate")[0]);
  std::vector<float> logits(experts);
  for (size_t e = 0; e < experts; ++e) {
    double sum = golden.has(name + ".bias") ? golden.floats(name + ".bias")[e] : 0.0;
    for (size_t i = 0; i < width; ++i)
      sum += double{x[t * width + i]} * double{gate[e * width + i]};
    logits[e] = static_cast<float>(sum);
  }
  return logits;
}

TEST_P(RoutingGolden, IdsAndWeightsAgree) {
  const auto& [name, config] = GetParam();
  const testing::GoldenFile golden(testing::golden_path("ops/routing.safetensors"));
  ASSERT_TRUE(check_router(config).ok());
  ASSERT_EQ(golden.shape(name + ".gate")[0], config.experts);
  const auto ids = golden.ints(name + ".ids");
  const auto weights = golden.floats(name + ".weights");
  const auto k = static_cast<size_t>(config.top_k);
  std::vector<float> bias;
  if (golden.has(name + ".correction_bias")) {
    const auto values = golden.floats(name + ".correction_bias");
    bias.assign(values.begin(), values.end());
  }
  for (size_t t = 0; t < ids.size() / k; ++t) {
    const Chosen chosen = choose(config, logits_of(golden, name, t), bias);
    // The golden lists slots by falling weight, the router by falling score: with a bias these
    // differ, so weights are matched by id.
    for (size_t i = 0; i < k; ++i) {
      const auto at = std::find(chosen.ids.begin(), chosen.ids.end(), ids[t * k + i]);
      ASSERT_NE(at, chosen.ids.end()) << "token " << t << ", expert " << ids[t * k + i];
      const float weight = chosen.weights[static_cast<size_t>(at - chosen.ids.begin())];
      EXPECT_NEAR(weight, weights[t * k + i], 1e-5f * std::fabs(weights[t * k + i])) << t;
      if (bias.empty()) {
        EXPECT_EQ(chosen.ids[i], ids[t * k + i]) << "slot order, token " << t;
      }
    }
  }
}

class RoutingKinds : public ::testing::TestWithParam<RouterKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, RoutingKinds,
                         ::testing::Values(RouterKind::kTopkSoftmax, RouterKind::kSoftmaxTopk,
                                           RouterKind::kSigmoidBiasGroups),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST_P(RoutingKinds, TiesGoToTheLowerExpert) {
  const Chosen chosen = choose(router(GetParam(), 6, 4), {1, 2, 1, 2, 1, 0});
  EXPECT_EQ(chosen.ids, (std::vector<int32_t>{1, 3, 0, 2}));
  EXPECT_EQ(choose(router(GetParam(), 5, 3), {0, 0, 0, 0, 0}).ids, (std::vector<int32_t>{0, 1, 2}));
}

TEST_P(RoutingKinds, AllExpertsMayBeChosen) {
  const Chosen chosen = choose(router(GetParam(), 3, 3), {0, 2, 1});
  EXPECT_EQ(chosen.ids, (std::vector<int32_t>{1, 2, 0}));
  float sum = 0;
  for (const float weight : chosen.weights) sum += weight;
  EXPECT_NEAR(sum, 1.0f, 1e-6f);
}

// Damaged weights or an overflow upstream: the ids are still experts, each once.
TEST_P(RoutingKinds, NanLogitsStillChooseExperts) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Chosen some = choose(router(GetParam(), 5, 3), {nan, 1, nan, 2, nan});
  EXPECT_EQ(some.ids, (std::vector<int32_t>{3, 1, 0}));
  const Chosen all = choose(router(GetParam(), 4, 3), {nan, nan, nan, nan});
  EXPECT_EQ(all.ids, (std::vector<int32_t>{0, 1, 2}));
}

TEST_P(RoutingKinds, LargeLogitsGiveFiniteWeights) {
  for (const float weight : choose(router(GetParam(), 4, 2), {3e38f, 1e38f, 0, 0}).weights) {
    EXPECT_TRUE(std::isfinite(weight));
  }
}

TEST(Routing, TheFactorIsAppliedOnce) {
  RouterConfig config = router(RouterKind::kSigmoidBiasGroups, 4, 2);
  config.scaling_factor = 2.5f;
  const Chosen chosen = choose(config, {1, 0, 3, 2});
  EXPECT_NEAR(chosen.weights[0] + chosen.weights[1], 2.5f, 1e-6f);
}

TEST(Routing, TheCorrectionBiasChoosesButDoesNotWeigh) {
  RouterConfig config = router(RouterKind::kSigmoidBiasGroups, 3, 1);
  config.renormalise = false;
  const Chosen chosen = choose(config, {0, 4, 2}, {1, 0, 0});
  EXPECT_EQ(chosen.ids[0], 0);
  EXPECT_FLOAT_EQ(chosen.weights[0], 0.5f);
}

TEST(Routing, ExpertsOutsideTheKeptGroupsAreNotChosenEvenByNegativeScores) {
  RouterConfig config = router(RouterKind::kSigmoidBiasGroups, 4, 2);
  config.groups = 2;
  config.groups_kept = 1;
  const Chosen chosen = choose(config, {0, 0, 0, 0}, {-5, -5, -7, 1});
  EXPECT_EQ(chosen.ids, (std::vector<int32_t>{3, 2}));  // -7 + 1 is more than -5 - 5
}

TEST(Routing, RowsAreRoutedOneByOne) {
  const RouterConfig config = router(RouterKind::kTopkSoftmax, 3, 2);
  const std::vector<float> logits = {0, 1, 2, /*stride*/ 99, 5, 4, 3, 99};
  std::vector<int32_t> ids(4);
  std::vector<float> weights(4);
  route(config, MatrixView<const float>(logits.data(), 2, Extent(3), 4), {}, ids, weights);
  EXPECT_EQ(ids, (std::vector<int32_t>{2, 1, 0, 1}));
}

TEST(Routing, WrongConfigsAreNamed) {
  RouterConfig config = router(RouterKind::kTopkSoftmax, 4, 5);
  EXPECT_FALSE(check_router(config).ok());
  config = router(RouterKind::kTopkSoftmax, 4, 0);
  EXPECT_FALSE(check_router(config).ok());
  config = router(RouterKind::kSigmoidBiasGroups, 10, 2);
  config.groups = 3;
  EXPECT_NE(check_router(config).message().find("3 groups of 10 experts"), std::string::npos);
  config = router(RouterKind::kSigmoidBiasGroups, 12, 5);
  config.groups = 3;
  EXPECT_FALSE(check_router(config).ok());  // four in the one kept group
  config.groups_kept = 2;
  EXPECT_TRUE(check_router(config).ok());
  config = router(RouterKind::kSigmoidBiasGroups, 1000, 5);
  config.groups = 100;
  EXPECT_FALSE(check_router(config).ok());
}

}  // namespace
}  // namespace rota
