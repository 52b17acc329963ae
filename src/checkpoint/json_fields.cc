#include "checkpoint/json_fields.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace rota {
namespace {

using nlohmann::json;

constexpr size_t kShownBytes = 60;
constexpr size_t kMaxListLength = 1 << 16;

std::string expected_integer(IntegerRange range) {
  return fmt::format("an integer from {} to {}", range.least, range.most);
}

std::string expected_number(NumberRange range) {
  return fmt::format("a number {} {} and at most {}", range.open_below ? "above" : "of at least",
                     range.least, range.most);
}

std::string cut_short(std::string text) {
  if (text.size() > kShownBytes) text = text.substr(0, kShownBytes) + "...";
  return text;
}

bool in_range(const json& value, IntegerRange range) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    return number <= static_cast<uint64_t>(INT64_MAX) &&
           static_cast<int64_t>(number) >= range.least &&
           static_cast<int64_t>(number) <= range.most;
  }
  if (!value.is_number_integer()) return false;
  const auto number = value.get<int64_t>();
  return number >= range.least && number <= range.most;
}

}  // namespace

std::string shown(const json& value) {
  return cut_short(value.dump(-1, ' ', true, json::error_handler_t::replace));
}

std::string shown_text(std::string_view text) {
  const std::string quoted = json(text).dump(-1, ' ', true, json::error_handler_t::replace);
  return cut_short(quoted.substr(1, quoted.size() - 2));
}

bool is_infinity(const json& value) {
  return value == "Infinity" ||
         (value.is_number() && value.get<double>() >= double{std::numeric_limits<float>::max()});
}

JsonFields::JsonFields(const json& object, std::string path)
    : object_(object), path_(std::move(path)) {
  if (!object_.is_object()) {
    fail(invalid_argument("{} is {}, expected a JSON object", path_, shown(object_)));
  }
}

const json* JsonFields::find(std::string_view name) const {
  if (!object_.is_object()) return nullptr;
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

bool JsonFields::mentions(std::string_view name) const {
  return object_.is_object() && object_.contains(name);
}

void JsonFields::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void JsonFields::fail(std::string_view name, std::string_view expected) {
  const json* value = find(name);
  fail(invalid_argument("{}: {} is {}, expected {}", path_, name,
                        value == nullptr ? "missing" : shown(*value), expected));
}

const json* JsonFields::require(std::string_view name, std::string_view expected) {
  const json* value = find(name);
  if (value == nullptr) fail(name, expected);
  return value;
}

int64_t JsonFields::to_integer(std::string_view name, const json& value, IntegerRange range) {
  if (in_range(value, range)) return value.get<int64_t>();
  fail(name, expected_integer(range));
  return range.least;
}

double JsonFields::to_number(std::string_view name, const json& value, NumberRange range) {
  if (value.is_number()) {
    const auto number = value.get<double>();
    const bool above = range.open_below ? number > range.least : number >= range.least;
    if (above && number <= range.most) return number;  // NaN fails both
  }
  fail(name, expected_number(range));
  return range.most;
}

int64_t JsonFields::integer(std::string_view name, IntegerRange range) {
  const json* value = require(name, expected_integer(range));
  return value == nullptr ? range.least : to_integer(name, *value, range);
}

double JsonFields::number(std::string_view name, NumberRange range) {
  const json* value = require(name, expected_number(range));
  return value == nullptr ? range.most : to_number(name, *value, range);
}

std::string JsonFields::text(std::string_view name) {
  const json* value = require(name, "a string");
  if (value == nullptr) return "";
  return text_or(name, "");
}

int64_t JsonFields::integer_or(std::string_view name, IntegerRange range, int64_t fallback) {
  return maybe_integer(name, range).value_or(fallback);
}

double JsonFields::number_or(std::string_view name, NumberRange range, double fallback) {
  return maybe_number(name, range).value_or(fallback);
}

bool JsonFields::flag_or(std::string_view name, bool fallback) {
  return maybe_flag(name).value_or(fallback);
}

std::string JsonFields::text_or(std::string_view name, std::string fallback) {
  const json* value = find(name);
  if (value == nullptr) return fallback;
  if (value->is_string()) return value->get<std::string>();
  fail(name, "a string");
  return fallback;
}

std::vector<std::string> JsonFields::texts_or_none(std::string_view name) {
  const json* value = find(name);
  std::vector<std::string> texts;
  if (value == nullptr) return texts;
  if (!value->is_array()) {
    fail(name, "a list of strings");
    return texts;
  }
  for (const json& element : *value) {
    if (!element.is_string()) {
      fail(name, "a list of strings");
      return {};
    }
    texts.push_back(element.get<std::string>());
  }
  return texts;
}

std::optional<int64_t> JsonFields::maybe_integer(std::string_view name, IntegerRange range) {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  return to_integer(name, *value, range);
}

std::optional<double> JsonFields::maybe_number(std::string_view name, NumberRange range) {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  return to_number(name, *value, range);
}

std::optional<bool> JsonFields::maybe_flag(std::string_view name) {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  fail(name, "true or false");
  return std::nullopt;
}

std::vector<int64_t> JsonFields::integers(std::string_view name, IntegerRange range) {
  const json* value = find(name);
  if (value == nullptr) return {};
  if (!value->is_array()) return {to_integer(name, *value, range)};
  if (value->size() > kMaxListLength) {
    fail(name, fmt::format("a list of at most {} integers", kMaxListLength));
    return {};
  }
  std::vector<int64_t> numbers;
  for (const json& element : *value) {
    if (!in_range(element, range)) {
      fail(name, fmt::format("a list, each {}", expected_integer(range)));
      return {};
    }
    numbers.push_back(element.get<int64_t>());
  }
  return numbers;
}

}  // namespace rota
