#include "text/thinking_parser.h"

#include <algorithm>
#include <utility>

namespace rota {
namespace {

constexpr std::string_view kOpen = "<think>", kClose = "</think>", kToolCall = "<tool_call>";
constexpr std::string_view kSpace = " \t\r\n";

StopStrings ends_of_reasoning() {
  Result<StopStrings> ends = StopStrings::make({std::string(kClose), std::string(kToolCall)});
  return std::move(ends).value();
}

void emit(ChatDelta::Kind kind, std::string_view text, std::vector<ChatDelta>& out) {
  if (text.empty()) return;
  if (!out.empty() && out.back().kind == kind) {
    out.back().text += text;
  } else {
    out.push_back({kind, std::string(text)});
  }
}

}  // namespace

ThinkingParser::ThinkingParser(std::shared_ptr<const Tokenizer> tokenizer, Options options)
    : tokenizer_(std::move(tokenizer)),
      detokenizer_(tokenizer_),
      state_(options.opens_reasoning ? State::kReasoning
             : options.thinks        ? State::kStart
                                     : State::kContent),
      end_(ends_of_reasoning()) {}

// The tags count where the vocabulary has them as special tokens too.
std::string ThinkingParser::text_of(int32_t id) {
  if (tokenizer_->is_special(id) && state_ != State::kContent) {
    const std::string_view name = tokenizer_->token_bytes(id);
    if (name == kOpen || name == kClose || name == kToolCall) {
      return detokenizer_.finish() + std::string(name);
    }
  }
  return detokenizer_.push(id);
}

std::vector<ChatDelta> ThinkingParser::push(int32_t id) {
  std::vector<ChatDelta> out;
  const bool reasoning = state_ == State::kReasoning;
  take(text_of(id), out);
  if (reasoning || state_ == State::kReasoning) ++reasoning_tokens_;
  return out;
}

void ThinkingParser::take(std::string_view text, std::vector<ChatDelta>& out) {
  switch (state_) {
    case State::kStart:
      return take_start(text, out);
    case State::kReasoning:
      return take_reasoning(text, out);
    case State::kContent:
      return emit(ChatDelta::Kind::kContent, text, out);
  }
}

void ThinkingParser::take_start(std::string_view text, std::vector<ChatDelta>& out) {
  start_ += text;
  const size_t begin = std::min(start_.find_first_not_of(kSpace), start_.size());
  const std::string_view word = std::string_view(start_).substr(begin);
  const size_t common = std::min(word.size(), kOpen.size());
  if (word.substr(0, common) != kOpen.substr(0, common)) {
    state_ = State::kContent;
    emit(ChatDelta::Kind::kContent, std::exchange(start_, {}), out);
  } else if (word.size() >= kOpen.size()) {
    state_ = State::kReasoning;
    const std::string rest(word.substr(kOpen.size()));
    start_.clear();
    take_reasoning(rest, out);
  }
}

void ThinkingParser::take_reasoning(std::string_view text, std::vector<ChatDelta>& out) {
  const StopStrings::Step step = end_.push(text);
  emit(ChatDelta::Kind::kReasoning, step.text, out);
  if (!step.matched) return;
  state_ = State::kContent;
  if (*step.matched == 1) emit(ChatDelta::Kind::kContent, kToolCall, out);
  emit(ChatDelta::Kind::kContent, text.substr(step.consumed), out);
}

ChatEnd ThinkingParser::finish(std::string_view finish_reason) {
  ChatEnd end{{}, std::string(finish_reason)};
  take(detokenizer_.finish(), end.deltas);
  emit(ChatDelta::Kind::kContent, std::exchange(start_, {}), end.deltas);
  emit(ChatDelta::Kind::kReasoning, end_.finish(), end.deltas);
  return end;
}

}  // namespace rota
