// The checkpoint's chat template (Jinja), as transformers would render it, and bounded.
//
// Contract: rendering cannot run on, blow up memory or crash, whatever the template says: time and data
// are paid for with fuel, recursion and output are limited. Example:
//   ROTA_ASSIGN_OR_RETURN(auto loaded, ChatTemplate::load(model_dir));
//   ROTA_ASSIGN_OR_RETURN(std::string text, loaded->render({{"messages", messages}}, {}));
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/chat.h"
#include "text/tokenizer.h"

struct RotaTemplate;  // the other side of the C ABI

namespace rota {

// One compiled template. Thread-safe.
class Template {
 public:
  struct Limits {
    uint64_t fuel = 0;  // 0: by the size of the variables
    size_t max_output = Tokenizer::kMaxTextBytes;
  };

  // kDataLoss: it does not parse; `name` stands for it in messages.
  static Result<std::unique_ptr<Template>> compile(std::string source, std::string name);
  ~Template();
  Template(const Template&) = delete;
  Template& operator=(const Template&) = delete;

  // `variables` is an object. kInvalidArgument: the template raised an exception or hit a limit.
  // `unix_seconds` is what strftime_now says. `markers`: see markers.h.
  Result<std::string> render(const OrderedJson& variables, int64_t unix_seconds,
                             const TextMarkers& markers, Limits limits) const;
  const std::string& source() const { return source_; }

 private:
  Template(RotaTemplate* handle, std::string source, std::string name);

  RotaTemplate* handle_;
  std::string source_;
  std::string name_;
};

// The templates of a model folder and the variables that come with them.
struct ChatTemplates {
  std::map<std::string, std::unique_ptr<Template>> by_name;  // "default", perhaps "tool_use", ...
  OrderedJson special_tokens;  // bos_token, eos_token, ... of tokenizer_config.json

  // chat_template.jinja before chat_template.json before tokenizer_config.json, as transformers does.
  // kUnsupported: none of them has a template.
  static Result<ChatTemplates> load(const std::filesystem::path& model_dir);

  // The one for a request with or without tools.
  const Template& choose(bool with_tools) const;
};

}  // namespace rota
