// A conversation as harmony sees it, and its tokens.
//
// Contract: render() gives what openai-harmony's render_conversation_for_completion gives: if the
// last turn of the assistant was final, analysis in front of the first final message is left out.
// All texts are text: a special token's name inside them stays text. Example:
//   Conversation conversation{.messages = {{.role = "user", .content = "Hi"}}};
//   ROTA_ASSIGN_OR_RETURN(ChatPrompt prompt, render(conversation, tokenizer, vocabulary));
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/chat.h"
#include "text/chat_messages.h"
#include "text/harmony/vocabulary.h"

namespace rota::harmony {

inline constexpr std::string_view kFunctions = "functions.";  // tools are functions.NAME

struct System {
  std::string model_identity = "You are ChatGPT, a large language model trained by OpenAI.";
  std::string knowledge_cutoff = "2024-06";
  std::string date;  // empty: no line
  std::string effort = "medium";
};

struct Message {
  std::string role = {};  // who speaks; "functions.NAME" for a tool's result
  std::string recipient = {};
  std::string channel = {};
  std::string content_type = {};  // "json", or "<|constrain|>json" with the special token
  std::string content = {};

  bool operator==(const Message&) const = default;
};

struct Conversation {
  System system;
  std::string instructions;     // of the developer message
  std::vector<ChatTool> tools;  // ... and its functions
  std::vector<Message> messages;
  bool add_generation_prompt = true;
};

Result<ChatPrompt> render(const Conversation& conversation, const Tokenizer& tokenizer,
                          const Vocabulary& vocabulary, const LengthCheck& check_length = {});

// The conversation of a chat request. Earlier reasoning is kept only after the last final answer:
// within a loop of tool calls. kInvalidArgument names the field.
Result<Conversation> conversation_of(const ChatRequest& request);

}  // namespace rota::harmony
