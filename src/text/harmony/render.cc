#include <algorithm>
#include <string_view>
#include <utility>

#include "text/harmony/conversation.h"
#include "text/harmony/typescript.h"

namespace rota::harmony {
namespace {

constexpr std::string_view kAssistant = "assistant", kAnalysis = "analysis", kFinal = "final";
constexpr std::string_view kConstrain = "<|constrain|>";

// Tokens from special tokens and runs of plain text.
class Writer {
 public:
  Writer(const Tokenizer& tokenizer, const Vocabulary& vocabulary, const LengthCheck& check_length)
      : tokenizer_(tokenizer), vocabulary_(vocabulary), check_length_(check_length) {}

  void text(std::string_view text) { run_ += text; }

  void special(int32_t id) {
    end_run();
    prompt_.ids.push_back(id);
    prompt_.text += tokenizer_.token_bytes(id);
  }

  void message(const Message& message) {
    special(vocabulary_.start);
    text(message.role);
    if (!message.recipient.empty()) text(" to=" + message.recipient);
    if (!message.channel.empty()) {
      special(vocabulary_.channel);
      text(message.channel);
    }
    if (!message.content_type.empty()) content_type(message.content_type);
    special(vocabulary_.message);
    text(message.content);
    const bool is_call = message.role == kAssistant && !message.recipient.empty();
    special(is_call ? vocabulary_.call : vocabulary_.end);
  }

  Result<ChatPrompt> finish() {
    end_run();
    if (!status_.ok()) return status_;
    return std::move(prompt_);
  }

 private:
  void content_type(std::string_view type) {
    text(" ");
    if (type.starts_with(kConstrain) && vocabulary_.constrain >= 0) {
      special(vocabulary_.constrain);
      type.remove_prefix(kConstrain.size());
    }
    text(type);
  }

  void end_run() {
    if (run_.empty() || !status_.ok()) return;
    if (check_length_) {
      status_ = check_length_(prompt_.ids.size() + tokenizer_.least_tokens(run_));
      if (!status_.ok()) return;
    }
    const Result<std::vector<int32_t>> ids = tokenizer_.encode(run_, {.special = Special::kAsText});
    if (!ids.ok()) {
      status_ = ids.status().with_context("messages");
      return;
    }
    prompt_.ids.insert(prompt_.ids.end(), ids->begin(), ids->end());
    prompt_.text += std::exchange(run_, {});
  }

  const Tokenizer& tokenizer_;
  const Vocabulary& vocabulary_;
  const LengthCheck& check_length_;
  ChatPrompt prompt_;
  std::string run_;
  Status status_;
};

std::string system_text(const System& system, bool has_tools) {
  std::string out = system.model_identity;
  out += "\nKnowledge cutoff: " + system.knowledge_cutoff;
  if (!system.date.empty()) out += "\nCurrent date: " + system.date;
  out += "\n\nReasoning: " + system.effort;
  out +=
      "\n\n# Valid channels: analysis, commentary, final. Channel must be included for every "
      "message.";
  if (has_tools) {
    out += "\nCalls to these tools must go to the commentary channel: 'functions'.";
  }
  return out;
}

std::string developer_text(const Conversation& conversation) {
  std::string out;
  if (!conversation.instructions.empty()) {
    out += "# Instructions\n\n" + conversation.instructions;
  }
  if (!conversation.tools.empty()) {
    if (!out.empty()) out += "\n\n";
    out += tools_section(conversation.tools);
  }
  return out;
}

// Messages before this one lose their analysis: the first final one, if the last of the assistant
// is final too.
size_t first_kept(const std::vector<Message>& messages) {
  const auto last = std::find_if(messages.rbegin(), messages.rend(),
                                 [](const Message& m) { return m.role == kAssistant; });
  if (last == messages.rend() || last->channel != kFinal) return 0;
  const auto first = std::ranges::find(messages, kFinal, &Message::channel);
  return static_cast<size_t>(first - messages.begin());
}

}  // namespace

Result<ChatPrompt> render(const Conversation& conversation, const Tokenizer& tokenizer,
                          const Vocabulary& vocabulary, const LengthCheck& check_length) {
  Writer writer(tokenizer, vocabulary, check_length);
  writer.message(
      {.role = "system", .content = system_text(conversation.system, !conversation.tools.empty())});
  std::string developer = developer_text(conversation);
  if (!developer.empty()) {
    writer.message({.role = "developer", .content = std::move(developer)});
  }
  const size_t kept = first_kept(conversation.messages);
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    const Message& message = conversation.messages[i];
    if (i < kept && message.channel == kAnalysis) continue;
    writer.message(message);
  }
  if (conversation.add_generation_prompt) {
    writer.special(vocabulary.start);
    writer.text(kAssistant);
  }
  return writer.finish();
}

}  // namespace rota::harmony
