#include "checkpoint/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/testing/write_safetensors.h"

namespace rota {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Result<GenerationConfig> parse(std::string_view text) {
  return parse_generation_config(nlohmann::json::parse(text), "generation_config.json");
}

TEST(GenerationConfig, ReadsWhatIsThere) {
  const auto c = parse(R"({"eos_token_id": [200002, 199999], "bos_token_id": 1, "pad_token_id": -1,
      "do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05,
      "repetition_penalty": 1.1, "max_new_tokens": 100, "transformers_version": "4.55.0"})");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_THAT(c->eos_token_ids, ElementsAre(200002, 199999));
  EXPECT_EQ(c->bos_token_id, 1);
  EXPECT_FALSE(c->pad_token_id.has_value());
  EXPECT_EQ(c->do_sample, true);
  EXPECT_EQ(c->temperature, 0.6);
  EXPECT_EQ(c->top_p, 0.95);
  EXPECT_EQ(c->top_k, 20);
  EXPECT_EQ(c->min_p, 0.05);
  EXPECT_EQ(c->repetition_penalty, 1.1);
  EXPECT_EQ(c->max_new_tokens, 100);
}

TEST(GenerationConfig, AbsentAndNullStayEmpty) {
  const auto c = parse(R"({"temperature": null, "eos_token_id": null})");
  ASSERT_TRUE(c.ok());
  EXPECT_THAT(c->eos_token_ids, IsEmpty());
  EXPECT_FALSE(c->temperature || c->top_p || c->top_k || c->do_sample || c->max_new_tokens);
}

TEST(GenerationConfig, TopKMinusOneIsAll) {
  EXPECT_EQ(parse(R"({"top_k": -1})")->top_k, 0);
  EXPECT_EQ(parse(R"({"top_k": 0})")->top_k, 0);
}

TEST(GenerationConfig, MissingFileIsEmptyAndBrokenFileIsAnError) {
  testing::TempFolder folder;
  EXPECT_TRUE(read_generation_config(folder.path()).ok());
  testing::write_file(folder / "generation_config.json", "{");
  EXPECT_THAT(status_of(read_generation_config(folder.path())).message(),
              HasSubstr("generation_config.json: line 1"));
}

TEST(GenerationConfig, ReadsTheGoldens) {
  const auto c = read_generation_config(std::string(ROTA_SOURCE_DIR) +
                                        "/tests/goldens/models/gptoss-mxfp4-h160");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_THAT(c->eos_token_ids, ElementsAre(2));
  EXPECT_EQ(c->do_sample, true);
}

TEST(GenerationConfigHostile, ValuesOutOfRangeAreNamed) {
  const std::vector<std::pair<const char*, const char*>> lies = {
      {R"({"temperature": -1})", "temperature is -1"},
      {R"({"temperature": 1e30})", "temperature is 1e+30"},
      {R"({"temperature": "NaN"})", "temperature is \"NaN\""},
      {R"({"top_p": 0})", "top_p is 0, expected a number above 0"},
      {R"({"top_p": 2})", "top_p is 2"},
      {R"({"top_k": -2})", "top_k is -2"},
      {R"({"min_p": 1.5})", "min_p is 1.5"},
      {R"({"repetition_penalty": 0})", "repetition_penalty is 0"},
      {R"({"max_new_tokens": 0})", "max_new_tokens is 0"},
      {R"({"eos_token_id": [-1]})", "eos_token_id is [-1]"},
      {R"({"eos_token_id": "</s>"})", "eos_token_id is \"</s>\""},
      {R"({"do_sample": 1})", "do_sample is 1, expected true or false"},
      {R"([])", "is [], expected a JSON object"}};
  for (const auto& [text, message] : lies) {
    EXPECT_THAT(status_of(parse(text)).message(), HasSubstr(message)) << text;
  }
}

}  // namespace
}  // namespace rota
