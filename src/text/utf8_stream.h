// Bytes in any portions to whole UTF-8 code points.
//
// Contract: append() writes the code points that are complete and keeps at most 3 bytes; what can
// never become valid is replaced by U+FFFD: one for each maximal invalid sequence, or one for each
// byte.
//   Utf8Stream stream;
//   stream.append("\xe4\xbd", out);  // nothing yet
//   stream.append("\xa0", out);      // 你
#pragma once

#include <string>
#include <string_view>

namespace rota {

class Utf8Stream {
 public:
  enum class Replace { kEachSequence, kEachByte };
  explicit Utf8Stream(Replace replace = Replace::kEachSequence) : replace_(replace) {}

  void append(std::string_view bytes, std::string& out);
  // No more bytes belong to this text: what is held back becomes U+FFFD.
  void finish(std::string& out);
  size_t held() const { return held_.size(); }

 private:
  void replace(size_t bytes, std::string& out) const;

  Replace replace_;
  std::string held_;
};

// True if the text is valid UTF-8 (no surrogates, no overlong forms).
bool is_valid_utf8(std::string_view text);

}  // namespace rota
