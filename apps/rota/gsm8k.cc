#include "rota/gsm8k.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "checkpoint/json_file.h"

namespace rota {
namespace {

constexpr std::string_view kMark = "####";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Where the digits that begin at `at` end, and a comma between thousands is one of them.
size_t end_of_digits(std::string_view text, size_t at) {
  const auto digits_from = [&](size_t from) {
    size_t end = from;
    while (end < text.size() && is_digit(text[end])) ++end;
    return end - from;
  };
  size_t end = at + digits_from(at);
  while (end < text.size() && text[end] == ',' && digits_from(end + 1) == 3) end += 4;
  return end;
}

// "-", "$-" or "-$" before a number, where no word or number is before that.
bool is_negative(std::string_view text, size_t at) {
  while (at > 0 && text[at - 1] == '$') --at;
  return at > 0 && text[at - 1] == '-' && (at == 1 || !is_word(text[at - 2]));
}

std::string normalised(bool negative, std::string_view whole, std::string_view fraction) {
  std::string digits;
  for (const char c : whole) {
    if (c != ',' && (c != '0' || !digits.empty())) digits += c;
  }
  if (digits.empty()) digits += '0';
  while (!fraction.empty() && fraction.back() == '0') fraction.remove_suffix(1);
  if (!fraction.empty()) digits.append(".").append(fraction);
  return (negative && digits != "0" ? "-" : "") + digits;
}

// The first number at or behind `at`, and where it ends; or nothing.
std::optional<std::string> next_number(std::string_view text, size_t& at) {
  for (; at < text.size(); ++at) {
    const bool begins_with_point =
        text[at] == '.' && at + 1 < text.size() && is_digit(text[at + 1]);
    if (!is_digit(text[at]) && !begins_with_point) continue;
    const size_t begin = at;
    const size_t point = end_of_digits(text, begin);
    size_t end = point;
    if (point + 1 < text.size() && text[point] == '.' && is_digit(text[point + 1])) {
      end = point + 1;
      while (end < text.size() && is_digit(text[end])) ++end;
    }
    at = end;
    const std::string_view fraction =
        end == point ? std::string_view() : text.substr(point + 1, end - point - 1);
    return normalised(is_negative(text, begin), text.substr(begin, point - begin), fraction);
  }
  return std::nullopt;
}

Result<Gsm8kProblem> parse_line(const std::string& place, std::string_view line) {
  ROTA_ASSIGN_OR_RETURN(const nlohmann::json root, parse_json(place, line));
  const auto text_of = [&](const char* field) -> const std::string* {
    if (!root.is_object() || !root.contains(field)) return nullptr;
    return root[field].get_ptr<const std::string*>();
  };
  const std::string* question = text_of("question");
  const std::string* answer = text_of("answer");
  if (question == nullptr || answer == nullptr) {
    return invalid_argument("{}: expected an object with two texts, question and answer", place);
  }
  const size_t mark = answer->rfind(kMark);
  const auto number = mark == std::string::npos
                          ? std::nullopt
                          : final_number(std::string_view(*answer).substr(mark));
  if (!number) {
    return invalid_argument("{}: the answer does not end with a line such as \"#### 42\"", place);
  }
  return Gsm8kProblem{*question, *answer, *number};
}

}  // namespace

Result<std::vector<Gsm8kProblem>> parse_gsm8k(std::string_view source, std::string_view text) {
  std::vector<Gsm8kProblem> problems;
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    ROTA_ASSIGN_OR_RETURN(Gsm8kProblem problem,
                          parse_line(fmt::format("{}, line {}", source, number), line));
    problems.push_back(std::move(problem));
  }
  return problems;
}

std::string gsm8k_prompt(std::span<const Gsm8kProblem> examples, const Gsm8kProblem& problem) {
  std::string prompt;
  for (const Gsm8kProblem& it : examples) {
    prompt += fmt::format("Question: {}\nAnswer: {}\n\n", it.question, it.answer);
  }
  return prompt + fmt::format("Question: {}\nAnswer:", problem.question);
}

std::optional<std::string> final_number(std::string_view text) {
  const size_t mark = text.find(kMark);
  size_t at = mark == std::string_view::npos ? 0 : mark + kMark.size();
  std::optional<std::string> found = next_number(text, at);
  if (mark != std::string_view::npos) return found;
  for (std::optional<std::string> next = found; next; next = next_number(text, at)) found = next;
  return found;
}

}  // namespace rota
