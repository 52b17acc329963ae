// One answer (choice) of an API request: turns the engine's tokens into the JSON of an event or of
// a whole response. Pure: no sockets, no engine.
//
//   auto choice = make_chat_choice(context, 0, prompt);
//   ChoiceNews news = choice->add(output);       // for every RequestOutput
//   send(event_of(news.delta));                  // streaming
//   whole = choice->message();                   // at the end, when not streaming
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/text_generation.h"
#include "server/api/api_request.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace rota {

struct ChoiceNews {
  std::vector<OrderedJson> deltas;  // entries of "choices", one for each event to send; may be none
  bool finished = false;
  bool cancel_request = false;  // a stop string was found: the engine need not go on
};

class Choice {
 public:
  virtual ~Choice() = default;
  virtual ChoiceNews add(const RequestOutput& output) = 0;
  // The entry of "choices" of a response that is not streamed; after the end.
  virtual OrderedJson whole() const = 0;
  virtual int64_t completion_tokens() const = 0;
  virtual int64_t reasoning_tokens() const { return 0; }
};

// What all choices of a request share.
struct ChoiceContext {
  const ApiRequest* request = nullptr;
  std::shared_ptr<const Tokenizer> tokenizer;
  int64_t moe_top_k = 0;  // for routed_experts
};

// /v1/completions. `prompt` is echoed when the request asks for it.
std::unique_ptr<Choice> make_completion_choice(const ChoiceContext& context, int64_t index,
                                               TokenIds prompt);

// /v1/chat/completions. The format and the prompt outlive the choice.
std::unique_ptr<Choice> make_chat_choice(const ChoiceContext& context, int64_t index,
                                         const ChatFormat& format, const ChatPrompt& prompt);

// {"text": ..., "experts": [[ids by falling weight] for each MoE layer]} for each token that was
// traced.
OrderedJson routed_experts(const Tokenizer& tokenizer, const std::vector<OutputToken>& tokens,
                           int64_t top_k);

}  // namespace rota
