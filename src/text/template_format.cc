#include "text/template_format.h"

#include <algorithm>
#include <array>
#include <utility>

#include "text/chat_date.h"
#include "text/chat_messages.h"
#include "text/thinking_parser.h"

namespace rota {
namespace {

constexpr std::string_view kThink = "<think>";

// Variables that a request cannot set.
constexpr std::array<std::string_view, 4> kReserved = {"messages", "tools", "chat_template",
                                                       "add_generation_prompt"};

Status check_kwargs(const OrderedJson& kwargs) {
  if (kwargs.is_null()) return {};
  if (!kwargs.is_object()) {
    return invalid_argument("chat_template_kwargs: expected an object, found {}",
                            kwargs.type_name());
  }
  for (std::string_view name : kReserved) {
    if (kwargs.contains(name)) {
      return invalid_argument("chat_template_kwargs.{}: cannot be set by a request", name);
    }
  }
  return {};
}

bool ends_in_think(std::string_view text) {
  const size_t end = text.find_last_not_of(" \t\r\n");
  return end != std::string_view::npos && text.substr(0, end + 1).ends_with(kThink);
}

}  // namespace

TemplateFormat::TemplateFormat(ChatTemplates templates, std::shared_ptr<const Tokenizer> tokenizer)
    : templates_(std::move(templates)), tokenizer_(std::move(tokenizer)), marks_(*tokenizer_) {
  thinks_ = std::ranges::any_of(templates_.by_name, [](const auto& entry) {
    return entry.second->source().find(kThink) != std::string::npos;
  });
}

// What the request says; the strings in it are not yet marked.
Result<OrderedJson> TemplateFormat::variables_of(const ChatRequest& request) const {
  ROTA_ASSIGN_OR_RETURN(const std::vector<ChatMessage> messages, read_messages(request.messages));
  ROTA_ASSIGN_OR_RETURN(const std::vector<ChatTool> tools,
                        read_tools(request.tools, request.tool_choice));
  ROTA_RETURN_IF_ERROR(check_kwargs(request.template_kwargs));
  OrderedJson variables = OrderedJson::object();
  variables["messages"] = messages_for_template(request.messages, messages);
  variables["tools"] = tools.empty() ? OrderedJson() : request.tools;
  variables["documents"] = OrderedJson();
  if (!request.reasoning_effort.empty()) variables["reasoning_effort"] = request.reasoning_effort;
  if (request.template_kwargs.is_object()) variables.update(request.template_kwargs);
  return variables;
}

Result<ChatPrompt> TemplateFormat::render(const ChatRequest& request) const {
  ROTA_ASSIGN_OR_RETURN(OrderedJson variables, variables_of(request));
  const Template& chosen = templates_.choose(!variables["tools"].is_null());
  ROTA_ASSIGN_OR_RETURN(const int64_t now, unix_seconds_of(request.date));
  ROTA_ASSIGN_OR_RETURN(const TextMarkers markers, marks_.mark(variables, chosen.source()));
  variables["add_generation_prompt"] = request.add_generation_prompt;
  for (const auto& [key, value] : templates_.special_tokens.items()) {
    if (!variables.contains(key)) variables[key] = value;
  }

  ROTA_ASSIGN_OR_RETURN(const std::string text, chosen.render(variables, now, markers, {}));
  ChatPrompt prompt;
  prompt.text = markers.originals.empty() ? text : unmark(text, markers);
  if (request.check_length) {
    ROTA_RETURN_IF_ERROR(request.check_length(tokenizer_->least_tokens(prompt.text)));
  }
  ROTA_ASSIGN_OR_RETURN(prompt.ids, tokenizer_->encode_marked(text, markers));
  prompt.opens_reasoning = request.add_generation_prompt && thinks_ && ends_in_think(text);
  return prompt;
}

std::unique_ptr<ChatParser> TemplateFormat::parser(const ChatPrompt& prompt) const {
  return std::make_unique<ThinkingParser>(
      tokenizer_,
      ThinkingParser::Options{.thinks = thinks_, .opens_reasoning = prompt.opens_reasoning});
}

}  // namespace rota
