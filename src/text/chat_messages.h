// OpenAI chat messages and tools, checked and in one shape for both chat formats.
//
// Contract: what is wrong is kInvalidArgument and begins with the field: "messages[3].role: ...".
// Every result of a tool names the function that it came from.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/chat.h"

namespace rota {

enum class ChatRole { kSystem, kDeveloper, kUser, kAssistant, kTool };

struct ChatToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON as the model wrote it; not checked
};

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string content;    // text parts are joined by newlines
  std::string reasoning;  // assistant: reasoning_content, or reasoning
  std::vector<ChatToolCall> tool_calls;
  std::string tool_name;  // tool: the function that was called
};

struct ChatTool {
  std::string name;
  std::string description;
  OrderedJson parameters;  // a JSON schema, or null
};

// JSON deeper than this is refused.
inline constexpr int kMaxChatJsonDepth = 64;

Result<std::vector<ChatMessage>> read_messages(const OrderedJson& messages);
// Empty where tool_choice hides the tools.
Result<std::vector<ChatTool>> read_tools(const OrderedJson& tools, const OrderedJson& tool_choice);

// The messages for a chat template: as they came, but content as one string, reasoning under both
// names and the arguments of tool calls as an object where they are one (templates expect that).
// `read` are the same messages, read.
OrderedJson messages_for_template(const OrderedJson& messages,
                                  const std::vector<ChatMessage>& read);

}  // namespace rota
