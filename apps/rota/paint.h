// Text for people: colours where the terminal has them, glyphs that the locale knows, columns.
#pragma once

#include <string>
#include <string_view>

namespace rota {

// How something is drawn: with colours on a terminal, in ASCII where the locale knows no more.
struct DrawingStyle {
  bool colour = false;
  bool unicode = true;
};
// From isatty, NO_COLOR, TERM, and LC_ALL, LC_CTYPE or LANG.
DrawingStyle drawing_style_of_stdout();

enum class Paint { kPlain, kBold, kDim, kMeant, kPadding, kWarning };

class Painter {
 public:
  explicit Painter(const DrawingStyle& style) : style_(style) {}
  std::string operator()(Paint paint, std::string_view text) const;
  std::string_view full() const { return style_.unicode ? "█" : "#"; }
  std::string_view light() const { return style_.unicode ? "░" : ":"; }
  std::string_view line() const { return style_.unicode ? "─" : "-"; }
  std::string_view head() const { return style_.unicode ? "▶" : ">"; }
  std::string_view times() const { return style_.unicode ? "×" : "x"; }

 private:
  DrawingStyle style_;
};

// `text` with spaces behind it (in front of it) up to `width` characters, not bytes.
std::string left(std::string_view text, int width);
std::string right(std::string_view text, int width);
std::string repeat(std::string_view glyph, int64_t count);

// Words in lines of at most `columns`, each after `indent` spaces but for the first.
std::string wrap(std::string_view text, int indent, int columns);

}  // namespace rota
