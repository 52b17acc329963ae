// Typed, ranged access to the fields of a JSON object. The first fault is kept, later reads return
// fallbacks: a parser reads all fields in a row and asks once.
//
//   JsonFields f(config, "config.json");
//   layout.hidden = f.integer("hidden_size", {1, 1 << 20});
//   layout.window = f.integer_or("sliding_window", {1, kMaxPosition}, 0);  // absent or null: 0
//   ROTA_RETURN_IF_ERROR(f.status());
//   // "config.json: hidden_size is 0, expected an integer from 1 to 1048576"
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace rota {

struct IntegerRange {
  int64_t least = 0;
  int64_t most = 0;
};

struct NumberRange {
  double least = 0;
  double most = 0;
  bool open_below = false;  // `least` itself is out
};

class JsonFields {
 public:
  // object: kept by reference; anything but a JSON object is a fault. path: what messages call it.
  JsonFields(const nlohmann::json& object, std::string path);

  // Required.
  int64_t integer(std::string_view name, IntegerRange range);
  double number(std::string_view name, NumberRange range);
  std::string text(std::string_view name);

  // Absent or null: the fallback.
  int64_t integer_or(std::string_view name, IntegerRange range, int64_t fallback);
  double number_or(std::string_view name, NumberRange range, double fallback);
  bool flag_or(std::string_view name, bool fallback);
  std::string text_or(std::string_view name, std::string fallback);
  std::vector<std::string> texts_or_none(std::string_view name);

  // Absent or null: nothing.
  std::optional<int64_t> maybe_integer(std::string_view name, IntegerRange range);
  std::optional<double> maybe_number(std::string_view name, NumberRange range);
  std::optional<bool> maybe_flag(std::string_view name);

  // An integer or a list of integers; absent or null: none.
  std::vector<int64_t> integers(std::string_view name, IntegerRange range);

  // The value, or nullptr if it is absent or null.
  const nlohmann::json* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  bool mentions(std::string_view name) const;  // there, even if null

  // "config.json: NAME is FOUND, expected EXPECTED"
  void fail(std::string_view name, std::string_view expected);
  void fail(Status status);

  const std::string& path() const { return path_; }
  Status status() const { return status_; }

 private:
  const nlohmann::json* require(std::string_view name, std::string_view expected);
  int64_t to_integer(std::string_view name, const nlohmann::json& value, IntegerRange range);
  double to_number(std::string_view name, const nlohmann::json& value, NumberRange range);

  const nlohmann::json& object_;
  std::string path_;
  Status status_;
};

// Infinity: as parse_json() leaves Python's, or a number that no float32 exceeds.
bool is_infinity(const nlohmann::json& value);

// A JSON value for a message: one line, cut short.
std::string shown(const nlohmann::json& value);

// A string's content for a message: letters beyond ASCII and control characters are escaped, so
// that a cut leaves no half of one.
std::string shown_text(std::string_view text);

}  // namespace rota
