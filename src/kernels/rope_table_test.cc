#include "kernels/rope_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "kernels/testing/golden.h"
#include "kernels/testing/harness.h"

namespace rota {
namespace {

using testing::expect_close;
using testing::GoldenFile;
using ::testing::HasSubstr;

constexpr YarnParameters kGptOssYarn{
    .factor = 32, .original_max_position = 4096, .truncate = false};

struct GoldenCase {
  const char* name;
  RopeParameters parameters;
};

const GoldenCase kGoldens[] = {
    {"gpt_oss", {.head_dim = 64, .theta = 150000, .yarn = kGptOssYarn, .attention_factor = {}}},
    {"gpt_oss_d32", {.head_dim = 32, .theta = 150000, .yarn = kGptOssYarn, .attention_factor = {}}},
    {"theta1e6", {.head_dim = 128, .theta = 1e6, .yarn = {}, .attention_factor = {}}},
    {"theta1e6_d18", {.head_dim = 18, .theta = 1e6, .yarn = {}, .attention_factor = {}}},
};

TEST(RopeTable, MatchesGoldens) {
  const GoldenFile golden("rope.safetensors");
  const std::vector<int32_t> positions = golden.ints("positions");
  for (const GoldenCase& test : kGoldens) {
    const std::string name = test.name;
    const auto table = RopeTable::make(test.parameters);
    ASSERT_TRUE(table.ok()) << table.status().message();
    const std::vector<float> inverse(table->inverse_frequencies().begin(),
                                     table->inverse_frequencies().end());
    expect_close(inverse, golden.floats(name + ".inv_freq"), 1e-7, 0, name + ".inv_freq");

    const size_t size = positions.size() * static_cast<size_t>(table->half_dim());
    std::vector<float> cos(size), sin(size);
    table->fill(positions, cos, sin);
    // The goldens' angles are float64 too, so that position 131071 is as close as position 1.
    expect_close(cos, golden.floats(name + ".cos"), 0, 2e-7, name + ".cos");
    expect_close(sin, golden.floats(name + ".sin"), 0, 2e-7, name + ".sin");
  }
}

// Hand-computed: head_dim 64, theta 150000, context 4096. The ramp runs from pair
// 64 ln(4096 / (32 2 pi)) / (2 ln 150000) = 8.09 to 64 ln(4096 / (2 pi)) / (2 ln 150000) = 17.40;
// truncated from 8 to 18.
TEST(RopeTable, TruncateRoundsTheRampOutwards) {
  constexpr double kLow = 8.092779115512402;
  constexpr double kHigh = 17.39802450158856;
  RopeParameters parameters{
      .head_dim = 64, .theta = 150000, .yarn = kGptOssYarn, .attention_factor = {}};
  const auto exact = RopeTable::make(parameters);
  parameters.yarn->truncate = true;
  const auto truncated = RopeTable::make(parameters);
  parameters.yarn.reset();
  const auto plain = RopeTable::make(parameters);
  const auto divided = [&](const RopeTable& table, size_t pair) {
    const double ratio = table.inverse_frequencies()[pair] / plain->inverse_frequencies()[pair];
    return (1 - ratio) / (1 - 1.0 / 32);  // 0: untouched, 1: divided by 32
  };
  EXPECT_NEAR(divided(*truncated, 13), 0.5, 1e-9);
  EXPECT_NEAR(divided(*truncated, 8), 0.0, 1e-9);
  EXPECT_NEAR(divided(*truncated, 17), 0.9, 1e-9);
  EXPECT_NEAR(divided(*truncated, 18), 1.0, 1e-9);
  EXPECT_NEAR(divided(*exact, 13), (13 - kLow) / (kHigh - kLow), 1e-9);
  EXPECT_NEAR(divided(*exact, 8), 0.0, 1e-9);
  EXPECT_NEAR(divided(*exact, 18), 1.0, 1e-9);
}

TEST(RopeTable, AttentionFactorIsTheGivenOneOrYarns) {
  RopeParameters parameters{
      .head_dim = 64, .theta = 150000, .yarn = kGptOssYarn, .attention_factor = {}};
  EXPECT_NEAR(RopeTable::make(parameters)->attention_factor(), 1.3465735902799727, 1e-12);
  parameters.attention_factor = 1.25;
  EXPECT_EQ(RopeTable::make(parameters)->attention_factor(), 1.25);
  parameters = {.head_dim = 64, .theta = 150000, .yarn = {}, .attention_factor = {}};
  EXPECT_EQ(RopeTable::make(parameters)->attention_factor(), 1.0);
  std::vector<float> cos(32), sin(32);
  parameters.attention_factor = 0.5;
  RopeTable::make(parameters)->fill(std::vector<int32_t>{0}, cos, sin);
  EXPECT_EQ(cos[7], 0.5f);
  EXPECT_EQ(sin[7], 0.0f);
}

void expect_refused(const RopeParameters& parameters, const char* names) {
  const auto table = RopeTable::make(parameters);
  ASSERT_FALSE(table.ok()) << names;
  EXPECT_EQ(table.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(table.status().message(), HasSubstr(names));
}

TEST(RopeTable, RefusesParametersWithoutAMeaning) {
  const RopeParameters good{
      .head_dim = 64, .theta = 150000, .yarn = kGptOssYarn, .attention_factor = {}};
  ASSERT_TRUE(RopeTable::make(good).ok());
  const double infinite = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  RopeParameters bad = good;
  for (const int64_t head_dim : {0, -2, 33}) {
    bad.head_dim = head_dim;
    expect_refused(bad, "head_dim");
  }
  bad = good;
  for (const double theta : {0.0, 1.0, -5.0, infinite, nan}) {
    bad.theta = theta;
    expect_refused(bad, "rope_theta");
  }
  bad = good;
  for (const double factor : {0.0, 0.5, infinite, nan}) {
    bad.yarn->factor = factor;
    expect_refused(bad, "YaRN factor");
  }
  bad = good;
  bad.yarn->original_max_position = 0;
  expect_refused(bad, "original_max_position_embeddings");
  bad = good;
  bad.yarn->beta_slow = 33;
  expect_refused(bad, "beta_slow");
  bad = good;
  bad.attention_factor = -1;
  expect_refused(bad, "attention_factor");
}

}  // namespace
}  // namespace rota
