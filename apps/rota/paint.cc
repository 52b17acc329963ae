#include "rota/paint.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace rota {
namespace {

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

// The first of the three that is set decides.
bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (!is_set(name)) continue;
    const std::string_view value = std::getenv(name);
    return value.find("UTF-8") != std::string_view::npos ||
           value.find("utf8") != std::string_view::npos;
  }
  return false;
}

// Characters of UTF-8: bytes that continue none.
int characters(std::string_view text) {
  return static_cast<int>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) >> 6) != 2; }));
}

std::string spaces(int count) { return std::string(static_cast<size_t>(std::max(0, count)), ' '); }

}  // namespace

DrawingStyle drawing_style_of_stdout() {
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  return {.colour = isatty(STDOUT_FILENO) == 1 && !is_set("NO_COLOR") && !dumb,
          .unicode = locale_is_utf8()};
}

std::string Painter::operator()(Paint paint, std::string_view text) const {
  if (!style_.colour || paint == Paint::kPlain || text.empty()) return std::string(text);
  const auto code = [paint]() -> std::string_view {
    switch (paint) {
      case Paint::kPlain:
        return "0";
      case Paint::kBold:
        return "1";
      case Paint::kDim:
        return "2";
      case Paint::kMeant:
        return "36";
      case Paint::kPadding:
        return "33";
      case Paint::kWarning:
        return "1;33";
    }
    return "0";
  }();
  return std::string("\x1b[").append(code).append("m").append(text).append("\x1b[0m");
}

std::string left(std::string_view text, int width) {
  return std::string(text) + spaces(width - characters(text));
}

std::string right(std::string_view text, int width) {
  return spaces(width - characters(text)) + std::string(text);
}

std::string repeat(std::string_view glyph, int64_t count) {
  std::string out;
  for (int64_t i = 0; i < count; ++i) out += glyph;
  return out;
}

std::string wrap(std::string_view text, int indent, int columns) {
  std::string out;
  int column = indent;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (column > indent && column + 1 + characters(word) > columns) {
      out.append(1, '\n').append(spaces(indent));
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += characters(word);
  }
  return out;
}

}  // namespace rota
