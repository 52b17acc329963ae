// Answers that a run has so far, kept in a file so that a later start goes on where it stopped.
//
//   {"settings": {...}}                       first line: what the answers depend on
//   {"problem": 3, "expected": "42", ...}     one line an answer, in the order in which they came
//
// A line that was cut off when its run was killed is dropped. While a run has the file open no
// other one can take it.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/status.h"

namespace rota {

struct Gsm8kAnswer {
  int64_t problem = 0;  // its index in the data
  std::string expected = {};
  std::optional<std::string> number = {};  // none: the text has none
  std::string text = {};
  std::string finish_reason = {};
  int64_t tokens = 0;

  bool correct() const { return number == expected; }
};

nlohmann::ordered_json to_json(const Gsm8kAnswer& answer);
Result<Gsm8kAnswer> gsm8k_answer_from_json(const nlohmann::json& json);

class Gsm8kResults {
 public:
  // Without a file: answers are kept in memory alone.
  Gsm8kResults() = default;
  // Reads what `path` has, or begins it. kInvalidArgument: it was made with other settings, which
  // are named.
  static Result<Gsm8kResults> open(const std::string& path, const nlohmann::ordered_json& settings);

  Gsm8kResults(Gsm8kResults&& other) noexcept;
  Gsm8kResults& operator=(Gsm8kResults&&) = delete;
  ~Gsm8kResults();

  Status add(Gsm8kAnswer answer);  // is in the file when it returns
  const std::map<int64_t, Gsm8kAnswer>& answers() const { return answers_; }  // by problem

 private:
  Gsm8kResults(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  Status read(const nlohmann::ordered_json& settings);
  Status write_line(const nlohmann::ordered_json& line) const;

  std::string path_;
  int fd_ = -1;
  std::map<int64_t, Gsm8kAnswer> answers_;
};

}  // namespace rota
