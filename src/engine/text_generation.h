// The text of one request as its tokens arrive: detokenised, cut at stop strings, the same whether
// it is streamed or not.
//
//   TextStream text(tokenizer, {.stop = {"\n\n"}});
//   TextDelta delta = text.add(output);             // for every RequestOutput of the request
//   if (delta.finish_reason != FinishReason::kNone && !output_was_last) client->cancel(id);
//
// Contract: deltas are whole UTF-8 code points; what may yet become a stop string is held back; a
// stop string itself and the token that ended the request are no part of the text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"

namespace rota {

class Tokenizer;

struct TextStreamOptions {
  std::vector<std::string> stop;      // stop strings; empty ones are ignored
  bool skip_special_tokens = true;    // leave special tokens out of the text
  bool include_stop_in_text = false;  // keep the stop string or stop token's text
};

struct TextDelta {
  std::string text;
  FinishReason finish_reason = FinishReason::kNone;  // kStop also for a stop string
  // What stopped it, for stop_reason: a stop string or a stop token (not the end-of-sequence one).
  std::optional<std::string> stop_string;
  std::optional<int32_t> stop_token;
  // True when the stream has ended but the engine does not know: the caller cancels the request.
  bool cancel_request = false;
  size_t tokens = 0;  // how many of the output's tokens belong to it (fewer after a stop string)
};

class TextStream {
 public:
  // The tokenizer outlives the stream.
  TextStream(const Tokenizer& tokenizer, TextStreamOptions options);
  ~TextStream();
  TextStream(TextStream&&) noexcept;
  TextStream& operator=(TextStream&&) noexcept;

  // After the end every further output gives an empty delta.
  TextDelta add(const RequestOutput& output);

  bool finished() const;
  const std::string& text() const;    // everything so far
  int64_t completion_tokens() const;  // for usage: stop token included
  const std::vector<int32_t>& token_ids() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace rota
