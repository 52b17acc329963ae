// Chat: messages to the model's prompt, and the model's tokens to reasoning, content and tool
// calls.
//
// Contract: one ChatFormat a model, immutable, shared by all requests: harmony where the vocabulary
// has its special tokens, else the checkpoint's chat template. Text of a request that looks like a
// special token is encoded as text. A ChatParser belongs to one answer; it never fails and loses no
// text. Example:
//   ROTA_ASSIGN_OR_RETURN(auto format, ChatFormat::load(model_dir, tokenizer));
//   ROTA_ASSIGN_OR_RETURN(ChatPrompt prompt, format->render({.messages = body["messages"]}));
//   auto parser = format->parser(prompt);
//   for (int32_t id : generate(prompt.ids)) send(parser->push(id));
//   ChatEnd end = parser->finish("stop");
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace rota {

// Keeps the order of keys: a tool's parameters must reach the model as they were written. Parse
// request bodies with it.
using OrderedJson = nlohmann::ordered_json;

// Asked before text is encoded, with a number of tokens that the prompt has at the least; an error
// is the answer then, and the text is never encoded.
using LengthCheck = std::function<Status(size_t least_tokens)>;

struct ChatRequest {
  OrderedJson messages;     // OpenAI chat messages; content is a string or a list of text parts
  OrderedJson tools;        // OpenAI tools, or null
  OrderedJson tool_choice;  // "none" hides the tools; null, "auto", ...: all are shown
  std::string reasoning_effort;       // "low", "medium", "high"; empty: the model's default
  OrderedJson template_kwargs;        // chat_template_kwargs: an object, or null
  bool add_generation_prompt = true;  // end with the beginning of the assistant's turn
  std::optional<std::string> date;    // YYYY-MM-DD for the system message; today if not given
  LengthCheck check_length;           // none: any length
};

struct ChatPrompt {
  std::vector<int32_t> ids;
  std::string text;              // the same as text, special tokens by name
  bool opens_reasoning = false;  // the prompt ends inside <think>: the answer begins with reasoning
};

// A piece of the answer, in the order in which it was generated. The parts of one kind concatenate.
struct ChatDelta {
  enum class Kind { kReasoning, kContent, kToolCallStart, kToolCallArguments };
  Kind kind;
  std::string text;    // kToolCallStart: the function's name
  int tool_index = 0;  // which tool call of this answer: 0, 1, ... (ids are the server's to give)

  bool operator==(const ChatDelta&) const = default;
};

struct ChatEnd {
  std::vector<ChatDelta> deltas;  // what was held back
  std::string finish_reason;      // the engine's, or "tool_calls" where a call ended a "stop"
};

class ChatParser {
 public:
  virtual ~ChatParser() = default;
  // Takes every generated token, stop tokens too. Texts are whole code points, never empty.
  virtual std::vector<ChatDelta> push(int32_t id) = 0;
  // Once, at the end, with the engine's reason: "stop", "length", ...
  virtual ChatEnd finish(std::string_view finish_reason) = 0;
  // Tokens so far that were reasoning (usage.completion_tokens_details).
  virtual int64_t reasoning_tokens() const = 0;
};

class ChatFormat {
 public:
  // Reads the template files of the folder where harmony does not apply. kUnsupported: the model
  // has no chat format; the message says what was looked for. kDataLoss: a template that does not
  // parse.
  static Result<std::unique_ptr<ChatFormat>> load(const std::filesystem::path& model_dir,
                                                  std::shared_ptr<const Tokenizer> tokenizer);
  virtual ~ChatFormat() = default;

  virtual std::string_view name() const = 0;  // "harmony" or "template"
  // kInvalidArgument names the field: "messages[3].role: ...". Thread-safe.
  virtual Result<ChatPrompt> render(const ChatRequest& request) const = 0;
  // Tokens that end the assistant's turn, beside the EOS ids of generation_config.json.
  virtual std::vector<int32_t> stop_token_ids() const = 0;
  virtual std::unique_ptr<ChatParser> parser(const ChatPrompt& prompt) const = 0;
};

}  // namespace rota
