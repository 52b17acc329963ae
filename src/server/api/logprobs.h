// Logprobs as OpenAI's two APIs write them, from what the engine gives for each position.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace rota {

// Chat: {"content": [{token, logprob, bytes, top_logprobs: [...]}]}, one entry.
OrderedJson chat_logprob(const Tokenizer& tokenizer, const PositionLogprobs& position);

// Completions: four parallel lists that grow token by token. text_offset counts characters (code
// points) of the text so far.
class CompletionLogprobs {
 public:
  explicit CompletionLogprobs(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  // The first prompt token has no logprob: pass nullopt.
  void add(int32_t token, const std::optional<PositionLogprobs>& position);
  bool empty() const { return tokens_.empty(); }
  // {tokens, token_logprobs, top_logprobs, text_offset}; clears the lists, offsets go on.
  OrderedJson take();

 private:
  const Tokenizer& tokenizer_;
  OrderedJson tokens_ = OrderedJson::array();
  OrderedJson logprobs_ = OrderedJson::array();
  OrderedJson top_ = OrderedJson::array();
  OrderedJson offsets_ = OrderedJson::array();
  int64_t offset_ = 0;
};

// vLLM's prompt_logprobs: [null, {"ID": {logprob, rank, decoded_token}}, ...].
OrderedJson prompt_logprobs(const Tokenizer& tokenizer,
                            const std::vector<std::optional<PositionLogprobs>>& positions);

}  // namespace rota
