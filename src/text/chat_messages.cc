#include "text/chat_messages.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace rota {
namespace {

constexpr size_t kMaxParsedArguments = 64 << 10;  // bytes

constexpr size_t kMaxNameBytes = 64;

constexpr std::array<std::pair<std::string_view, ChatRole>, 5> kRoles = {
    {{"system", ChatRole::kSystem},
     {"developer", ChatRole::kDeveloper},
     {"user", ChatRole::kUser},
     {"assistant", ChatRole::kAssistant},
     {"tool", ChatRole::kTool}}};

std::string_view kind_of(const OrderedJson& value) { return value.type_name(); }

bool deeper_than(const OrderedJson& value, int depth) {
  if (!value.is_structured()) return false;
  if (depth == 0) return true;
  return std::ranges::any_of(value,
                             [&](const OrderedJson& item) { return deeper_than(item, depth - 1); });
}

const OrderedJson* member(const OrderedJson& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// A name of a function: it becomes part of the markup around a message, so that spaces and control
// characters cannot be let through.
Status check_name(const std::string& field, const std::string& name) {
  const bool good = !name.empty() && name.size() <= kMaxNameBytes &&
                    std::ranges::all_of(name, [](unsigned char c) {
                      return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
                    });
  if (good) return {};
  return invalid_argument("{}: expected 1 to {} letters, digits, '_', '-' or '.'", field,
                          kMaxNameBytes);
}

// One message of the list, at messages[index].
class MessageReader {
 public:
  MessageReader(const OrderedJson& json, size_t index,
                const std::map<std::string, std::string>& called)
      : json_(json), path_(fmt::format("messages[{}]", index)), called_(called) {}

  Result<ChatMessage> read() {
    if (!json_.is_object()) return wrong("", "expected an object, found {}", kind_of(json_));
    if (deeper_than(json_, kMaxChatJsonDepth)) {
      return wrong("", "nested more than {} deep", kMaxChatJsonDepth);
    }
    ROTA_RETURN_IF_ERROR(read_role());
    ROTA_RETURN_IF_ERROR(read_tool_calls());
    ROTA_RETURN_IF_ERROR(read_content());
    ROTA_RETURN_IF_ERROR(read_reasoning());
    ROTA_RETURN_IF_ERROR(read_tool_name());
    return std::move(message_);
  }

 private:
  template <typename... Args>
  Status wrong(std::string_view field, fmt::format_string<Args...> format, Args&&... args) const {
    return invalid_argument("{}{}: {}", path_, field,
                            fmt::format(format, std::forward<Args>(args)...));
  }

  // An optional string; missing and null are empty.
  Result<std::string> text(const OrderedJson& object, const char* name, std::string_view field) {
    const OrderedJson* value = member(object, name);
    if (value == nullptr) return std::string();
    if (!value->is_string()) return wrong(field, "expected a string, found {}", kind_of(*value));
    return value->get<std::string>();
  }

  Status read_role() {
    ROTA_ASSIGN_OR_RETURN(const std::string role, text(json_, "role", ".role"));
    const auto found =
        std::ranges::find(kRoles, role, &std::pair<std::string_view, ChatRole>::first);
    if (found == kRoles.end()) {
      return wrong(".role", "expected system, developer, user, assistant or tool");
    }
    message_.role = found->second;
    return {};
  }

  Status read_content() {
    const OrderedJson* content = member(json_, "content");
    if (content == nullptr) {
      if (message_.role == ChatRole::kAssistant) return {};
      return wrong(".content", "is missing; expected a string or a list of text parts");
    }
    if (content->is_string()) {
      message_.content = content->get<std::string>();
      return {};
    }
    if (!content->is_array()) {
      return wrong(".content", "expected a string or a list of text parts, found {}",
                   kind_of(*content));
    }
    for (size_t i = 0; i < content->size(); ++i) {
      ROTA_RETURN_IF_ERROR(read_part((*content)[i], fmt::format(".content[{}]", i), i));
    }
    return {};
  }

  Status read_part(const OrderedJson& part, const std::string& field, size_t index) {
    if (!part.is_object()) return wrong(field, "expected an object, found {}", kind_of(part));
    const auto type = part.find("type");
    const bool is_text = type != part.end() && type->is_string() &&
                         (*type == "text" || *type == "input_text" || *type == "output_text");
    if (!is_text) {
      return wrong(field + ".type", "expected \"text\"; this model takes text only");
    }
    const OrderedJson* content = member(part, "text");
    if (content == nullptr || !content->is_string()) {
      return wrong(field + ".text", "expected a string");
    }
    if (index > 0) message_.content += '\n';
    message_.content += content->get_ref<const std::string&>();
    return {};
  }

  Status read_reasoning() {
    if (message_.role != ChatRole::kAssistant) return {};
    ROTA_ASSIGN_OR_RETURN(message_.reasoning,
                          text(json_, "reasoning_content", ".reasoning_content"));
    if (!message_.reasoning.empty()) return {};
    ROTA_ASSIGN_OR_RETURN(message_.reasoning, text(json_, "reasoning", ".reasoning"));
    return {};
  }

  Status read_tool_calls() {
    const OrderedJson* calls = member(json_, "tool_calls");
    if (calls == nullptr || message_.role != ChatRole::kAssistant) return {};
    if (!calls->is_array()) {
      return wrong(".tool_calls", "expected a list, found {}", kind_of(*calls));
    }
    for (size_t i = 0; i < calls->size(); ++i) {
      ROTA_ASSIGN_OR_RETURN(ChatToolCall call,
                            read_call((*calls)[i], fmt::format(".tool_calls[{}]", i)));
      message_.tool_calls.push_back(std::move(call));
    }
    return {};
  }

  Result<ChatToolCall> read_call(const OrderedJson& json, const std::string& field) {
    if (!json.is_object()) return wrong(field, "expected an object, found {}", kind_of(json));
    const OrderedJson* function = member(json, "function");
    if (function == nullptr || !function->is_object()) {
      return wrong(field + ".function", "expected an object with name and arguments");
    }
    ChatToolCall call;
    ROTA_ASSIGN_OR_RETURN(call.id, text(json, "id", field + ".id"));
    ROTA_ASSIGN_OR_RETURN(call.name, text(*function, "name", field + ".function.name"));
    ROTA_RETURN_IF_ERROR(check_name(path_ + field + ".function.name", call.name));
    const OrderedJson* arguments = member(*function, "arguments");
    if (arguments == nullptr) return call;
    if (arguments->is_string()) {
      call.arguments = arguments->get<std::string>();
    } else if (arguments->is_object()) {
      call.arguments = arguments->dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
    } else {
      return wrong(field + ".function.arguments", "expected a string of JSON, found {}",
                   kind_of(*arguments));
    }
    return call;
  }

  // Which call a result answers: by its tool_call_id, or by name where a client gives no ids.
  Status read_tool_name() {
    if (message_.role != ChatRole::kTool) return {};
    ROTA_ASSIGN_OR_RETURN(const std::string id, text(json_, "tool_call_id", ".tool_call_id"));
    ROTA_ASSIGN_OR_RETURN(message_.tool_name, text(json_, "name", ".name"));
    if (const auto call = called_.find(id); call != called_.end() && !id.empty()) {
      message_.tool_name = call->second;
      return {};
    }
    if (!id.empty()) return wrong(".tool_call_id", "names no earlier tool call");
    if (message_.tool_name.empty()) return wrong(".tool_call_id", "is missing");
    return check_name(path_ + ".name", message_.tool_name);
  }

  const OrderedJson& json_;
  const std::string path_;
  const std::map<std::string, std::string>& called_;  // tool call id -> function
  ChatMessage message_;
};

Result<ChatTool> read_tool(const OrderedJson& json, size_t index) {
  const std::string path = fmt::format("tools[{}]", index);
  if (!json.is_object()) {
    return invalid_argument("{}: expected an object, found {}", path, kind_of(json));
  }
  if (deeper_than(json, kMaxChatJsonDepth)) {
    return invalid_argument("{}: nested more than {} deep", path, kMaxChatJsonDepth);
  }
  const auto type = json.find("type");
  if (type == json.end() || *type != "function") {
    return invalid_argument("{}.type: expected \"function\"", path);
  }
  const OrderedJson* function = member(json, "function");
  if (function == nullptr || !function->is_object()) {
    return invalid_argument("{}.function: expected an object", path);
  }
  ChatTool tool;
  const OrderedJson* name = member(*function, "name");
  if (name == nullptr || !name->is_string()) {
    return invalid_argument("{}.function.name: expected a string", path);
  }
  tool.name = name->get<std::string>();
  ROTA_RETURN_IF_ERROR(check_name(path + ".function.name", tool.name));
  if (const OrderedJson* description = member(*function, "description"); description != nullptr) {
    if (!description->is_string()) {
      return invalid_argument("{}.function.description: expected a string", path);
    }
    tool.description = description->get<std::string>();
  }
  if (const OrderedJson* parameters = member(*function, "parameters"); parameters != nullptr) {
    if (!parameters->is_object()) {
      return invalid_argument("{}.function.parameters: expected a JSON schema, found {}", path,
                              kind_of(*parameters));
    }
    tool.parameters = *parameters;
  }
  return tool;
}

// Name of the function that a tool_choice object asks for.
Result<std::string> chosen_function(const OrderedJson& choice) {
  const OrderedJson* function = choice.is_object() ? member(choice, "function") : nullptr;
  const OrderedJson* name =
      function != nullptr && function->is_object() ? member(*function, "name") : nullptr;
  if (name == nullptr || !name->is_string()) {
    return invalid_argument(
        "tool_choice: expected \"none\", \"auto\", \"required\" or "
        "{{\"type\": \"function\", \"function\": {{\"name\": ...}}}}");
  }
  return name->get<std::string>();
}

}  // namespace

Result<std::vector<ChatMessage>> read_messages(const OrderedJson& messages) {
  if (!messages.is_array()) {
    return invalid_argument("messages: expected a list, found {}", kind_of(messages));
  }
  if (messages.empty()) return invalid_argument("messages: expected at least one message");
  std::vector<ChatMessage> out;
  std::map<std::string, std::string> called;
  for (size_t i = 0; i < messages.size(); ++i) {
    ROTA_ASSIGN_OR_RETURN(ChatMessage message, MessageReader(messages[i], i, called).read());
    for (const ChatToolCall& call : message.tool_calls) {
      if (!call.id.empty()) called[call.id] = call.name;
    }
    out.push_back(std::move(message));
  }
  return out;
}

Result<std::vector<ChatTool>> read_tools(const OrderedJson& tools, const OrderedJson& tool_choice) {
  if (!tools.is_null() && !tools.is_array()) {
    return invalid_argument("tools: expected a list, found {}", kind_of(tools));
  }
  std::vector<ChatTool> out;
  for (size_t i = 0; i < tools.size(); ++i) {
    ROTA_ASSIGN_OR_RETURN(ChatTool tool, read_tool(tools[i], i));
    out.push_back(std::move(tool));
  }
  if (tool_choice == "none") return std::vector<ChatTool>();
  if (tool_choice.is_null() || tool_choice == "auto" || tool_choice == "required") return out;
  ROTA_ASSIGN_OR_RETURN(const std::string name, chosen_function(tool_choice));
  if (std::ranges::find(out, name, &ChatTool::name) == out.end()) {
    return invalid_argument("tool_choice.function.name: names none of the tools");
  }
  return out;
}

OrderedJson messages_for_template(const OrderedJson& messages,
                                  const std::vector<ChatMessage>& read) {
  OrderedJson out = messages;
  for (size_t i = 0; i < read.size(); ++i) {
    OrderedJson& message = out[i];
    if (member(message, "content") != nullptr) message["content"] = read[i].content;
    if (!read[i].reasoning.empty()) {
      message["reasoning_content"] = read[i].reasoning;
      message["reasoning"] = read[i].reasoning;
    }
    for (size_t k = 0; k < read[i].tool_calls.size(); ++k) {
      // An ordered object looks its keys up one by one: long arguments stay the text that they are.
      const std::string& text = read[i].tool_calls[k].arguments;
      if (text.size() > kMaxParsedArguments) continue;
      OrderedJson arguments = OrderedJson::parse(text, nullptr, false);
      const bool usable = arguments.is_object() && !deeper_than(arguments, kMaxChatJsonDepth);
      if (usable) message["tool_calls"][k]["function"]["arguments"] = std::move(arguments);
    }
    if (read[i].role == ChatRole::kTool) message["name"] = read[i].tool_name;
  }
  return out;
}

}  // namespace rota
