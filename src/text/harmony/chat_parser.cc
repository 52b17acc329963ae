#include "text/harmony/chat_parser.h"

#include <utility>

#include "text/harmony/conversation.h"

namespace rota::harmony {
namespace {

// The function that a message calls; empty if it is none.
std::string_view called_function(const Header& header) {
  std::string_view name = header.recipient;
  if (header.role != "assistant" || name == "assistant" || name == "user" || name == "all") {
    return {};
  }
  if (name.starts_with(kFunctions)) name.remove_prefix(kFunctions.size());
  return name;
}

}  // namespace

std::vector<ChatDelta> HarmonyChatParser::push(int32_t id) {
  std::vector<ChatDelta> out = deltas_of(stream_.push(id));
  if (stream_.in_message() && kind_ == ChatDelta::Kind::kReasoning) ++reasoning_tokens_;
  return out;
}

ChatEnd HarmonyChatParser::finish(std::string_view finish_reason) {
  ChatEnd end;
  end.deltas = deltas_of(stream_.finish());
  const bool called = tool_calls_ > 0 && finish_reason == "stop";
  end.finish_reason = called ? "tool_calls" : finish_reason;
  return end;
}

void HarmonyChatParser::open(const Header& header, std::vector<ChatDelta>& out) {
  const std::string_view function = called_function(header);
  if (function.empty()) {
    kind_ = header.channel == Channel::kAnalysis && header.role == "assistant"
                ? ChatDelta::Kind::kReasoning
                : ChatDelta::Kind::kContent;
    return;
  }
  kind_ = ChatDelta::Kind::kToolCallArguments;
  out.push_back({ChatDelta::Kind::kToolCallStart, std::string(function), tool_calls_++});
}

std::vector<ChatDelta> HarmonyChatParser::deltas_of(const std::vector<Event>& events) {
  std::vector<ChatDelta> out;
  for (const Event& event : events) {
    if (event.kind == Event::Kind::kMessage) open(event.header, out);
    if (event.kind != Event::Kind::kText) continue;
    const int tool = kind_ == ChatDelta::Kind::kToolCallArguments ? tool_calls_ - 1 : 0;
    if (!out.empty() && out.back().kind == kind_ && out.back().tool_index == tool) {
      out.back().text += event.text;
    } else {
      out.push_back({kind_, event.text, tool});
    }
  }
  return out;
}

}  // namespace rota::harmony
