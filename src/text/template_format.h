// ChatFormat by the checkpoint's chat template.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "text/chat.h"
#include "text/chat_template.h"
#include "text/markers.h"

namespace rota {

class TemplateFormat : public ChatFormat {
 public:
  TemplateFormat(ChatTemplates templates, std::shared_ptr<const Tokenizer> tokenizer);

  std::string_view name() const override { return "template"; }
  Result<ChatPrompt> render(const ChatRequest& request) const override;
  std::vector<int32_t> stop_token_ids() const override { return {}; }
  std::unique_ptr<ChatParser> parser(const ChatPrompt& prompt) const override;

 private:
  Result<OrderedJson> variables_of(const ChatRequest& request) const;

  ChatTemplates templates_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  SpecialTextMarks marks_;
  bool thinks_ = false;
};

}  // namespace rota
