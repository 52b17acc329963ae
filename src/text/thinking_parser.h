// The answers of models with a chat template: plain content, and <think>...</think> as reasoning.
//
// Contract: see ChatParser. Reasoning begins with <think> at the beginning of the answer, or in the
// prompt (opens_reasoning), and ends with </think>; a <tool_call> ends it too, and stays in the
// content. All text but the two tags comes out.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace rota {

class ThinkingParser : public ChatParser {
 public:
  struct Options {
    bool thinks = false;           // the template knows <think>
    bool opens_reasoning = false;  // the prompt ends with it
  };
  ThinkingParser(std::shared_ptr<const Tokenizer> tokenizer, Options options);

  std::vector<ChatDelta> push(int32_t id) override;
  ChatEnd finish(std::string_view finish_reason) override;
  int64_t reasoning_tokens() const override { return reasoning_tokens_; }

 private:
  enum class State { kStart, kReasoning, kContent };
  std::string text_of(int32_t id);
  void take(std::string_view text, std::vector<ChatDelta>& out);
  void take_start(std::string_view text, std::vector<ChatDelta>& out);
  void take_reasoning(std::string_view text, std::vector<ChatDelta>& out);

  std::shared_ptr<const Tokenizer> tokenizer_;
  Detokenizer detokenizer_;
  State state_;
  std::string start_;  // kStart: what may still become <think>
  StopStrings end_;    // kReasoning: finds the tags that end it
  int64_t reasoning_tokens_ = 0;
};

}  // namespace rota
