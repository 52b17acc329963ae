// The checkpoint's chat template (Jinja), as transformers would render it, and bounded.
//
// Contract: rendering cannot run on, blow up memory or crash, whatever the template says: time and
// data are paid for with fuel, recursion and output are limited, and what escapes these ends in the
// process that the template runs in (template_worker.h). Example:
//   ROTA_ASSIGN_OR_RETURN(auto loaded, ChatTemplate::load(model_dir));
//   ROTA_ASSIGN_OR_RETURN(std::string text, loaded->render({{"messages", messages}}, {}));
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace rota {

class TemplateWorker;

// One template, and the processes that hold it compiled. Thread-safe: calls at the same time have a
// process each.
class Template {
 public:
  struct Limits {
    uint64_t fuel = 0;  // 0: by the size of the variables
    size_t max_output = Tokenizer::kMaxTextBytes;
    std::chrono::milliseconds patience{0};  // for the process that renders; 0: its own
  };

  // kDataLoss: it does not parse; `name` stands for it in messages.
  static Result<std::unique_ptr<Template>> compile(std::string source, std::string name);
  ~Template();
  Template(const Template&) = delete;
  Template& operator=(const Template&) = delete;

  // `variables` is an object. kInvalidArgument: the template raised an exception or hit a limit.
  // kUnavailable: its process stopped answering; it was ended, and the next call has a new one.
  // `unix_seconds` is what strftime_now says. `markers`: see markers.h.
  Result<std::string> render(const OrderedJson& variables, int64_t unix_seconds,
                             const TextMarkers& markers, Limits limits) const;
  const std::string& source() const { return source_; }

 private:
  Template(std::string source, std::string name);
  std::unique_ptr<TemplateWorker> idle_worker() const;
  Result<std::unique_ptr<TemplateWorker>> new_worker() const;
  void give_back(std::unique_ptr<TemplateWorker> worker) const;

  std::string source_;
  std::string name_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<TemplateWorker>> idle_;
};

// The templates of a model folder and the variables that come with them.
struct ChatTemplates {
  std::map<std::string, std::unique_ptr<Template>> by_name;  // "default", perhaps "tool_use", ...
  OrderedJson special_tokens;  // bos_token, eos_token, ... of tokenizer_config.json

  // chat_template.jinja before chat_template.json before tokenizer_config.json, as transformers
  // does. kUnsupported: none of them has a template.
  static Result<ChatTemplates> load(const std::filesystem::path& model_dir);

  // The one for a request with or without tools.
  const Template& choose(bool with_tools) const;
};

}  // namespace rota
