#include "rota/gsm8k.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rota {
namespace {

using ::testing::HasSubstr;

std::string number_in(std::string_view text) { return final_number(text).value_or("none"); }

TEST(Gsm8k, EqualNumbersAreEqualTexts) {
  for (const char* text :
       {"1234.5", "1,234.50", "$1,234.5", "$1,234.5.", "01234.500", "It is 1,234.5, so"})
    EXPECT_EQ(number_in(text), "1234.5") << text;
  for (const char* text : {"42", "42.", "42.00", "$42", "042", "42%", "= 42 apples", "6*7=42."})
    EXPECT_EQ(number_in(text), "42") << text;
  for (const char* text : {"-7", "$-7", "-$7.0", "it is -7."})
    EXPECT_EQ(number_in(text), "-7") << text;
  EXPECT_EQ(number_in("10-7"), "7");
  EXPECT_EQ(number_in("-0.0"), "0");
  EXPECT_EQ(number_in(".50"), "0.5");
  EXPECT_EQ(number_in("1,234,567"), "1234567");
}

TEST(Gsm8k, ACommaBetweenNumbersIsNoneOfThousands) {
  EXPECT_EQ(number_in("3,4"), "4");
  EXPECT_EQ(number_in("12,3456"), "3456");
  EXPECT_EQ(number_in("1,234,5"), "5");
}

TEST(Gsm8k, TheMarkedNumberWinsElseTheLast) {
  EXPECT_EQ(number_in("3 + 4 = 7\n#### 7\n\n9 more"), "7");
  EXPECT_EQ(number_in("1\n####8\n#### 9"), "8");
  EXPECT_EQ(number_in("3 and 4 are 7 apples."), "7");
  EXPECT_EQ(number_in("7\n#### "), "none");
  EXPECT_EQ(number_in("seven."), "none");
  EXPECT_EQ(number_in(""), "none");
}

TEST(Gsm8k, LinesAreProblems) {
  const auto problems = parse_gsm8k("f",
                                    "{\"question\": \"a?\", \"answer\": \"x\\n#### 1,000\"}\r\n\n"
                                    "{\"answer\": \"#### -2\", \"question\": \"b?\", \"more\": 1}");
  ASSERT_TRUE(problems.ok()) << problems.status().message();
  ASSERT_EQ(problems->size(), 2u);
  EXPECT_EQ(problems->at(0).number, "1000");
  EXPECT_EQ(problems->at(1).number, "-2");
  EXPECT_EQ(gsm8k_prompt(std::span(*problems).first(1), problems->at(1)),
            "Question: a?\nAnswer: x\n#### 1,000\n\nQuestion: b?\nAnswer:");
}

TEST(Gsm8k, AWrongLineIsNamed) {
  const auto message = [](std::string_view line) {
    const std::string good = "{\"question\": \"a?\", \"answer\": \"#### 1\"}\n";
    return parse_gsm8k("f.jsonl", good + std::string(line)).status().message();
  };
  EXPECT_THAT(message("{\"question\": 1, \"answer\": \"#### 1\"}"),
              HasSubstr("f.jsonl, line 2: expected"));
  EXPECT_THAT(message("[]"), HasSubstr("line 2: expected an object"));
  EXPECT_THAT(message("{\"question\": \"a\", \"answer\": \"7\"}"),
              HasSubstr("line 2: the answer does not end"));
  EXPECT_THAT(message("{\"question\": "), HasSubstr("line 2"));
}

}  // namespace
}  // namespace rota
