#include "rota/gsm8k_results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace rota {
namespace {

using ::testing::HasSubstr;

class Gsm8kResultsTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove(path_); }
  void TearDown() override { std::filesystem::remove(path_); }

  Result<Gsm8kResults> open(int shots = 8) {
    return Gsm8kResults::open(path_, {{"model", "m"}, {"shots", shots}});
  }
  std::string text() const {
    std::ostringstream out;
    out << std::ifstream(path_).rdbuf();
    return out.str();
  }
  void append(const std::string& text) const { std::ofstream(path_, std::ios::app) << text; }

  std::string path_ =
      ::testing::TempDir() + "gsm8k_results_test_" + std::to_string(::getpid()) + ".jsonl";
};

Gsm8kAnswer answer(int64_t problem, const std::string& number) {
  return {.problem = problem,
          .expected = "7",
          .number = number,
          .text = "so \"" + number + "\"\n",
          .finish_reason = "stop",
          .tokens = 5};
}

TEST_F(Gsm8kResultsTest, ASecondStartHasTheAnswersOfTheFirst) {
  {
    auto results = open();
    ASSERT_TRUE(results.ok()) << results.status().message();
    ASSERT_TRUE(results->add(answer(4, "7")).ok());
    Gsm8kAnswer none = answer(2, "");
    none.number.reset();
    ASSERT_TRUE(results->add(none).ok());
  }
  auto again = open();
  ASSERT_TRUE(again.ok()) << again.status().message();
  ASSERT_EQ(again->answers().size(), 2u);
  EXPECT_EQ(to_json(again->answers().at(4)), to_json(answer(4, "7")));
  EXPECT_TRUE(again->answers().at(4).correct());
  EXPECT_EQ(again->answers().at(2).number, std::nullopt);
  EXPECT_FALSE(again->answers().at(2).correct());
}

TEST_F(Gsm8kResultsTest, ALineThatWasCutOffIsDropped) {
  {
    auto results = open();
    ASSERT_TRUE(results->add(answer(1, "7")).ok());
  }
  const std::string whole = text();
  append("{\"problem\": 2, \"expec");
  {
    auto results = open();
    ASSERT_TRUE(results.ok()) << results.status().message();
    EXPECT_EQ(results->answers().size(), 1u);
    EXPECT_EQ(text(), whole);
    ASSERT_TRUE(results->add(answer(2, "8")).ok());
  }
  EXPECT_EQ(open()->answers().size(), 2u);
}

TEST_F(Gsm8kResultsTest, OtherSettingsAreNamed) {
  ASSERT_TRUE(open(8).ok());
  const auto refused = open(4);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("shots is 8 there and 4 here"));
  EXPECT_THAT(refused.status().message(), HasSubstr(path_));
}

TEST_F(Gsm8kResultsTest, AnotherFileIsLeftAsItIs) {
  append("my notes");
  EXPECT_FALSE(open().ok());
  EXPECT_EQ(text(), "my notes");
  append("\n");
  EXPECT_FALSE(open().ok());
  EXPECT_EQ(text(), "my notes\n");
}

TEST_F(Gsm8kResultsTest, OneRunHasTheFile) {
  auto first = open();
  ASSERT_TRUE(first.ok());
  EXPECT_THAT(open().status().message(), HasSubstr("another run is writing it"));
}

}  // namespace
}  // namespace rota
