// Harmony answers as chat deltas: analysis is reasoning, a message to functions.NAME is a tool
// call, everything else is content. See ChatParser.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "text/chat.h"
#include "text/harmony/stream.h"

namespace rota::harmony {

class HarmonyChatParser : public ChatParser {
 public:
  HarmonyChatParser(std::shared_ptr<const Tokenizer> tokenizer, const Vocabulary& vocabulary)
      : stream_(std::move(tokenizer), vocabulary) {}

  std::vector<ChatDelta> push(int32_t id) override;
  ChatEnd finish(std::string_view finish_reason) override;
  int64_t reasoning_tokens() const override { return reasoning_tokens_; }

 private:
  std::vector<ChatDelta> deltas_of(const std::vector<Event>& events);
  void open(const Header& header, std::vector<ChatDelta>& out);

  Stream stream_;
  ChatDelta::Kind kind_ = ChatDelta::Kind::kContent;  // of the open message's text
  int tool_calls_ = 0;
  int64_t reasoning_tokens_ = 0;
};

}  // namespace rota::harmony
