#include "checkpoint/json_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "platform/read_file.h"

namespace rota {
namespace {

struct Place {
  int64_t line = 1;
  int64_t column = 1;
  std::string near;  // printable
};

Place place_of(std::string_view text, size_t at) {
  at = std::min(at, text.size());
  Place place;
  for (size_t i = 0; i < at; ++i) {
    const bool newline = text[i] == '\n';
    place.line += newline ? 1 : 0;
    place.column = newline ? 1 : place.column + 1;
  }
  for (const char c : text.substr(at, 24)) {
    if (c == '\n') break;
    place.near.push_back(c >= 0x20 && c < 0x7f ? c : '?');
  }
  return place;
}

Status not_json(std::string_view source, std::string_view text, size_t at) {
  const Place place = place_of(text, at);
  const bool nan = text.substr(std::min(at, text.size())).starts_with("NaN");
  return invalid_argument("{}: line {}, column {}: not valid JSON near '{}'{}", source, place.line,
                          place.column, place.near,
                          nan ? ": NaN is no number; write one, or null, in its place" : "");
}

// A file says infinity a few times at most; each costs a pass.
constexpr size_t kMaxInfinities = 16;

// Puts the Infinity at which the parser stopped in quotes, with its sign; false if it is none.
bool quote_infinity(std::string& text, size_t at) {
  constexpr std::string_view kInfinity = "Infinity";
  if (text.compare(std::min(at, text.size()), kInfinity.size(), kInfinity) != 0) return false;
  text.insert(at + kInfinity.size(), 1, '"');
  text.insert(at > 0 && text[at - 1] == '-' ? at - 1 : at, 1, '"');
  return true;
}

}  // namespace

int json_depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

Result<nlohmann::json> parse_json(std::string_view source, std::string_view text) {
  if (const int depth = json_depth(text); depth > kMaxJsonDepth) {
    return invalid_argument("{}: JSON nested {} deep, expected at most {}", source, depth,
                            kMaxJsonDepth);
  }
  std::optional<std::string> quoted;
  for (size_t infinities = 0;; ++infinities) {
    const std::string_view input = quoted ? *quoted : text;
    try {
      return nlohmann::json::parse(input.begin(), input.end());
    } catch (const nlohmann::json::parse_error& e) {
      const size_t at = e.byte > 0 ? e.byte - 1 : 0;
      if (!quoted) quoted = text;
      if (infinities == kMaxInfinities || !quote_infinity(*quoted, at)) {
        return not_json(source, text, at - 2 * infinities);
      }
    } catch (const nlohmann::json::exception& e) {
      return invalid_argument("{}: not usable JSON: {}", source, e.what());
    }
  }
}

Result<nlohmann::json> read_json_file(const std::string& path) {
  ROTA_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxJsonFileBytes));
  return parse_json(path, text);
}

}  // namespace rota
