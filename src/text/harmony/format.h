// ChatFormat by harmony.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "text/chat.h"
#include "text/harmony/chat_parser.h"
#include "text/harmony/conversation.h"

namespace rota::harmony {

class HarmonyFormat : public ChatFormat {
 public:
  HarmonyFormat(std::shared_ptr<const Tokenizer> tokenizer, const Vocabulary& vocabulary)
      : tokenizer_(std::move(tokenizer)), vocabulary_(vocabulary) {}

  std::string_view name() const override { return "harmony"; }

  Result<ChatPrompt> render(const ChatRequest& request) const override {
    ROTA_ASSIGN_OR_RETURN(const Conversation conversation, conversation_of(request));
    return harmony::render(conversation, *tokenizer_, vocabulary_, request.check_length);
  }

  std::vector<int32_t> stop_token_ids() const override {
    return {vocabulary_.return_, vocabulary_.call};
  }

  std::unique_ptr<ChatParser> parser(const ChatPrompt&) const override {
    return std::make_unique<HarmonyChatParser>(tokenizer_, vocabulary_);
  }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  Vocabulary vocabulary_;
};

}  // namespace rota::harmony
