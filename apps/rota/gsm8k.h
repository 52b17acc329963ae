// Grade-school mathematics (GSM8K): problems, the prompt with solved examples, and the number that
// an answer comes to. Pure.
//
//   {"question": "Tom has 3 apples and buys 4. How many has he?", "answer": "3 + 4 = 7\n#### 7"}
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace rota {

struct Gsm8kProblem {
  std::string question;
  std::string answer;  // worked out; its last line is "#### NUMBER"
  std::string number;  // that one, as final_number() writes it
};

// One JSON object a line, as the public files have them. source: what messages call the text.
Result<std::vector<Gsm8kProblem>> parse_gsm8k(std::string_view source, std::string_view text);

// "Question: ...\nAnswer: ...\n\n" for each example, then "Question: ...\nAnswer:". An answer has
// ended where the next question begins.
inline constexpr std::string_view kGsm8kStop = "Question:";
std::string gsm8k_prompt(std::span<const Gsm8kProblem> examples, const Gsm8kProblem& problem);

// The number behind the first "####", or where there is none the last one of the text. Written one
// way, so that equal numbers are equal texts: "$1,234.50." is "1234.5", "007" is "7", "-0" is "0".
// None: the text has no number.
std::optional<std::string> final_number(std::string_view text);

}  // namespace rota
