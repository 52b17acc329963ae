// Token ids to text, one at a time, for streams.
//
// Contract: push() returns only whole code points and holds back at most 3 bytes; finish() replaces
// what is left by U+FFFD. O(1) amortised a token. The pieces together are Tokenizer::decode of the
// sequence; only where a byte-fallback vocabulary produced invalid UTF-8 they differ: decode gives
// up the whole run of byte tokens, the stream only the invalid bytes. Example:
//   Detokenizer text(tokenizer, {.skip_special = true});
//   for (int32_t id : ids) emit(text.push(id));
//   emit(text.finish());
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "text/tokenizer.h"
#include "text/utf8_stream.h"

namespace rota {

struct DetokenizerOptions {
  bool skip_special = true;
  // The stream goes on after a text that was already shown (a completion of a prompt): keep the
  // leading space that SentencePiece vocabularies put before the first word of a text.
  bool continues_text = false;
};

class Detokenizer {
 public:
  explicit Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, DetokenizerOptions options = {});

  std::string push(int32_t id);
  std::string finish();  // once, at the end; push() may follow and begins a new text

 private:
  void begin_text();
  void append(int32_t id, std::string& out);

  std::shared_ptr<const Tokenizer> tokenizer_;
  DetokenizerOptions options_;
  Utf8Stream utf8_;
  bool at_start_ = true;  // no token of this text yet
  uint32_t spaces_to_strip_ = 0;
  bool continues_ = false;
};

}  // namespace rota
