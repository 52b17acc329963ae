// Keeps text that looks like a special token apart from the template's own special tokens.
//
// Contract: before a template is rendered, the first character of every special token's name inside
// the request's strings is replaced by a private-use character that occurs nowhere in the request,
// one character for one; a name that a string only begins at its end counts too. Trimming,
// measuring, cutting and joining work as before. After the special tokens were found the characters
// are put back (Tokenizer::encode_marked, unmark()). Example:
//   ROTA_ASSIGN_OR_RETURN(TextMarkers markers, marks.mark(context, {"messages"}, template_source));
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace rota {

class SpecialTextMarks {
 public:
  explicit SpecialTextMarks(const Tokenizer& tokenizer);

  // Marks all strings and keys inside `value`. No markers come back where there was nothing to
  // mark.
  // `others` are texts that the markers must not occur in. kInvalidArgument: no unused character is left.
  Result<TextMarkers> mark(OrderedJson& value, std::string_view others) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, uint32_t>> children;  // sorted by byte
    bool whole = false;                                        // a name ends here
  };
  uint32_t child(uint32_t node, unsigned char byte) const;
  void add(std::string_view name);
  bool begins_name(std::string_view text) const;
  bool text_has_names(std::string_view text) const;
  bool has_names(const OrderedJson& value) const;
  void mark(OrderedJson& value, const TextMarkers& markers) const;
  std::string marked(const std::string& text, const TextMarkers& markers) const;

  std::vector<Node> nodes_;
  std::u32string originals_;  // the first characters of all names
};

// The text with its markers put back.
std::string unmark(std::string_view text, const TextMarkers& markers);

}  // namespace rota
