// The text of one request as its tokens arrive: detokenised, cut at stop strings, the same whether
// it is streamed or not.
//
//   ROTA_ASSIGN_OR_RETURN(TextStream text, TextStream::make(tokenizer, {.stop = {"\n\n"}}));
//   TextDelta delta = text.add(output);             // for every RequestOutput of the request
//   if (delta.cancel_request) client->cancel(id);
//
// Contract: deltas are whole UTF-8 code points; what may yet become a stop string is held back; a
// stop string itself and the token that ended the request are no part of the text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/request.h"

namespace rota {

class Tokenizer;

struct TextStreamOptions {
  std::vector<std::string> stop = {};  // stop strings
  bool skip_special_tokens = true;     // leave special tokens out of the text
  bool continues_text = false;         // a completion that is shown behind its prompt
  bool include_stop_in_text = false;   // keep the stop string or stop token's text
};

struct TextDelta {
  std::string text = {};
  FinishReason finish_reason = FinishReason::kNone;  // kStop also for a stop string
  // What stopped it: a stop string, or a token (of stop_token_ids, or the end-of-sequence one).
  std::optional<std::string> stop_string = {};
  std::optional<int32_t> stop_token = {};
  // True when the stream has ended but the engine does not know: the caller cancels the request.
  bool cancel_request = false;
  size_t tokens = 0;  // how many of the output's tokens belong to it (fewer after a stop string)
};

class TextStream {
 public:
  // kInvalidArgument: an empty stop string, or more than a megabyte of them.
  static Result<TextStream> make(std::shared_ptr<const Tokenizer> tokenizer,
                                 const TextStreamOptions& options = {});
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
  explicit TextStream(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace rota
