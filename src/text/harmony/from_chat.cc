#include <array>
#include <utility>

#include "text/chat_date.h"
#include "text/harmony/conversation.h"

namespace rota::harmony {
namespace {

constexpr std::array<std::string_view, 3> kEfforts = {"low", "medium", "high"};

Status read_text_kwarg(const OrderedJson& kwargs, const char* name, std::string& out) {
  const auto found = kwargs.find(name);
  if (found == kwargs.end() || found->is_null()) return {};
  if (!found->is_string()) {
    return invalid_argument("chat_template_kwargs.{}: expected a string, found {}", name,
                            found->type_name());
  }
  out = found->get<std::string>();
  return {};
}

Result<System> system_of(const ChatRequest& request) {
  System system;
  ROTA_ASSIGN_OR_RETURN(system.date, prompt_date(request.date));
  const OrderedJson& kwargs = request.template_kwargs;
  if (!kwargs.is_null() && !kwargs.is_object()) {
    return invalid_argument("chat_template_kwargs: expected an object, found {}",
                            kwargs.type_name());
  }
  if (kwargs.is_object()) {
    if (kwargs.contains("chat_template")) {
      return invalid_argument("chat_template_kwargs.chat_template: cannot be set by a request");
    }
    ROTA_RETURN_IF_ERROR(read_text_kwarg(kwargs, "model_identity", system.model_identity));
    ROTA_RETURN_IF_ERROR(read_text_kwarg(kwargs, "reasoning_effort", system.effort));
  }
  if (!request.reasoning_effort.empty()) system.effort = request.reasoning_effort;
  for (std::string_view effort : kEfforts) {
    if (system.effort == effort) return system;
  }
  return invalid_argument("reasoning_effort: expected low, medium or high");
}

bool is_final(const ChatMessage& message) {
  return message.role == ChatRole::kAssistant && message.tool_calls.empty();
}

void add_assistant(const ChatMessage& message, bool keep_reasoning, std::vector<Message>& out) {
  if (keep_reasoning && !message.reasoning.empty()) {
    out.push_back({.role = "assistant", .channel = "analysis", .content = message.reasoning});
  }
  if (is_final(message)) {
    out.push_back({.role = "assistant", .channel = "final", .content = message.content});
    return;
  }
  if (!message.content.empty()) {  // said to the user before the calls
    out.push_back({.role = "assistant", .channel = "commentary", .content = message.content});
  }
  for (const ChatToolCall& call : message.tool_calls) {
    out.push_back({.role = "assistant",
                   .recipient = std::string(kFunctions) + call.name,
                   .channel = "commentary",
                   .content_type = "<|constrain|>json",
                   .content = call.arguments});
  }
}

// System and developer messages in front are the instructions; later ones stay where they are.
size_t take_instructions(const std::vector<ChatMessage>& messages, std::string& instructions) {
  size_t i = 0;
  for (; i < messages.size(); ++i) {
    const ChatRole role = messages[i].role;
    if (role != ChatRole::kSystem && role != ChatRole::kDeveloper) break;
    if (!instructions.empty()) instructions += "\n\n";
    instructions += messages[i].content;
  }
  return i;
}

}  // namespace

Result<Conversation> conversation_of(const ChatRequest& request) {
  ROTA_ASSIGN_OR_RETURN(const std::vector<ChatMessage> messages, read_messages(request.messages));
  Conversation out;
  ROTA_ASSIGN_OR_RETURN(out.tools, read_tools(request.tools, request.tool_choice));
  ROTA_ASSIGN_OR_RETURN(out.system, system_of(request));
  out.add_generation_prompt = request.add_generation_prompt;

  size_t last_final = messages.size();
  for (size_t i = 0; i < messages.size(); ++i) {
    if (is_final(messages[i])) last_final = i;
  }
  for (size_t i = take_instructions(messages, out.instructions); i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    switch (message.role) {
      case ChatRole::kSystem:
      case ChatRole::kDeveloper:
        out.messages.push_back(
            {.role = "developer", .content = "# Instructions\n\n" + message.content});
        break;
      case ChatRole::kUser:
        out.messages.push_back({.role = "user", .content = message.content});
        break;
      case ChatRole::kAssistant:
        add_assistant(message, last_final == messages.size() || i > last_final, out.messages);
        break;
      case ChatRole::kTool:
        out.messages.push_back({.role = std::string(kFunctions) + message.tool_name,
                                .recipient = "assistant",
                                .channel = "commentary",
                                .content = message.content});
        break;
    }
  }
  return out;
}

}  // namespace rota::harmony
