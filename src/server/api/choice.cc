#include "server/api/choice.h"

#include <algorithm>
#include <random>
#include <utility>

#include "server/api/logprobs.h"
#include "text/stop_strings.h"

namespace rota {
namespace {

// What the client asked to stop at: a string, or a token of its own list (an end of sequence is no
// reason).
OrderedJson stop_reason(const ApiRequest& request, const std::optional<std::string>& stop_string,
                        const std::optional<int32_t>& stop_token) {
  if (stop_string) return *stop_string;
  const auto& wanted = request.client_stop_token_ids;
  if (stop_token && std::find(wanted.begin(), wanted.end(), *stop_token) != wanted.end())
    return *stop_token;
  return nullptr;
}

std::string new_tool_call_id() {
  static thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("call_{:016x}{:08x}", random(), random() >> 32);
}

class CompletionChoice final : public Choice {
 public:
  CompletionChoice(const ChoiceContext& context, int64_t index, TokenIds prompt)
      : context_(context),
        request_(*context.request),
        index_(index),
        prompt_(std::move(prompt)),
        text_(TextStream::make(context.tokenizer,
                               {.stop = request_.stop,
                                .skip_special_tokens = request_.skip_special_tokens,
                                .continues_text = true,
                                .include_stop_in_text = request_.include_stop_in_text})
                  .value()),
        logprobs_(*context.tokenizer) {}

  ChoiceNews add(const RequestOutput& output) override {
    ChoiceNews news;
    if (text_.finished()) return news;
    std::string echoed = first_output(output);
    const TextDelta delta = text_.add(output);
    for (size_t i = 0; i < delta.tokens && request_.sampling.logprobs >= 0; ++i) {
      logprobs_.add(output.tokens[i].id, output.tokens[i].logprobs);
    }
    const std::string text = echoed + delta.text;
    for (size_t i = 0; i < delta.tokens; ++i) ids_.push_back(output.tokens[i].id);
    news.finished = delta.finish_reason != FinishReason::kNone;
    news.cancel_request = delta.cancel_request;
    OrderedJson traced;
    if (request_.return_routed_experts)
      traced = routed_experts(*context_.tokenizer, output.tokens, context_.moe_top_k);
    if (!request_.stream) {
      keep(text, delta, std::move(traced));
      return news;
    }
    if (text.empty() && logprobs_.empty() && !news.finished && traced.empty()) return news;
    OrderedJson event = {{"index", index_},
                         {"text", text},
                         {"logprobs", nullptr},
                         {"finish_reason", nullptr},
                         {"stop_reason", nullptr}};
    if (request_.sampling.logprobs >= 0) event["logprobs"] = logprobs_.take();
    if (news.finished) finish(event, delta);
    if (request_.return_routed_experts) event["routed_experts"] = std::move(traced);
    if (request_.return_token_ids) event["token_ids"] = std::exchange(ids_, OrderedJson::array());
    news.deltas.push_back(std::move(event));
    return news;
  }

  OrderedJson whole() const override { return whole_; }
  int64_t completion_tokens() const override { return text_.completion_tokens(); }

 private:
  // Echo comes before the first token, with the prompt's logprobs.
  std::string first_output(const RequestOutput& output) {
    if (std::exchange(started_, true)) return {};
    if (request_.prompt_logprobs && !request_.stream) {
      prompt_logprobs_ = prompt_logprobs(*context_.tokenizer, output.prompt_logprobs);
    }
    if (!request_.echo) return {};
    if (request_.sampling.logprobs >= 0) {
      for (size_t i = 0; i < prompt_.size(); ++i) {
        logprobs_.add(prompt_[i],
                      i < output.prompt_logprobs.size() ? output.prompt_logprobs[i] : std::nullopt);
      }
    }
    return context_.tokenizer->decode(prompt_.vector(), request_.skip_special_tokens);
  }

  void finish(OrderedJson& entry, const TextDelta& delta) const {
    entry["finish_reason"] = to_string(delta.finish_reason);
    entry["stop_reason"] = stop_reason(request_, delta.stop_string, delta.stop_token);
  }

  void keep(const std::string& text, const TextDelta& delta, OrderedJson traced) {
    whole_text_ += text;
    for (OrderedJson& entry : traced) traced_.push_back(std::move(entry));
    if (delta.finish_reason == FinishReason::kNone) return;
    whole_ = {{"index", index_},
              {"text", whole_text_},
              {"logprobs", nullptr},
              {"finish_reason", nullptr},
              {"stop_reason", nullptr}};
    if (request_.sampling.logprobs >= 0) whole_["logprobs"] = logprobs_.take();
    finish(whole_, delta);
    if (!prompt_logprobs_.is_null()) whole_["prompt_logprobs"] = std::move(prompt_logprobs_);
    if (request_.return_routed_experts) whole_["routed_experts"] = std::move(traced_);
    if (request_.return_token_ids) {
      whole_["token_ids"] = std::move(ids_);
      whole_["prompt_token_ids"] = prompt_.vector();
    }
  }

  ChoiceContext context_;
  const ApiRequest& request_;
  int64_t index_;
  TokenIds prompt_;
  TextStream text_;
  CompletionLogprobs logprobs_;
  bool started_ = false;
  std::string whole_text_;
  OrderedJson ids_ = OrderedJson::array();
  OrderedJson traced_ = OrderedJson::array();
  OrderedJson prompt_logprobs_;
  OrderedJson whole_;
};

// What a chat answer says so far, in the shape of OpenAI's message.
struct ChatMessage {
  std::string content;
  std::string reasoning;
  struct ToolCall {
    std::string id, name, arguments;
  };
  std::vector<ToolCall> tool_calls;
};

class ChatChoice final : public Choice {
 public:
  ChatChoice(const ChoiceContext& context, int64_t index, const ChatFormat& format,
             const ChatPrompt& prompt)
      : context_(context),
        request_(*context.request),
        index_(index),
        parser_(format.parser(prompt)),
        stops_(StopStrings::make(request_.stop, request_.include_stop_in_text).value()) {}

  ChoiceNews add(const RequestOutput& output) override {
    ChoiceNews news;
    if (finished_) return news;
    std::vector<ChatDelta> deltas;
    OrderedJson logprobs = OrderedJson::array();
    size_t used = 0;
    for (; used < output.tokens.size() && !matched_; ++used) {
      const OutputToken& token = output.tokens[used];
      if (token.logprobs && !token.logprobs->empty()) {
        logprobs.push_back(chat_logprob(*context_.tokenizer, *token.logprobs));
      }
      ids_.push_back(token.id);
      filter(parser_->push(token.id), deltas);
    }
    completion_tokens_ += static_cast<int64_t>(used);
    std::string reason;
    if (matched_ || output.finish_reason != FinishReason::kNone) reason = finish(output, deltas);
    news.finished = finished_ = !reason.empty();
    news.cancel_request = matched_ && output.finish_reason == FinishReason::kNone;

    OrderedJson traced;
    if (request_.return_routed_experts)
      traced = routed_experts(*context_.tokenizer, output.tokens, context_.moe_top_k);
    if (request_.stream) {
      stream(deltas, reason, output, std::move(logprobs), std::move(traced), news);
    } else {
      for (const ChatDelta& delta : deltas) collect(delta);
      for (OrderedJson& entry : logprobs) logprobs_.push_back(std::move(entry));
      for (OrderedJson& entry : traced) traced_.push_back(std::move(entry));
      if (finished_) assemble(reason, output);
    }
    return news;
  }

  OrderedJson whole() const override { return whole_; }
  int64_t completion_tokens() const override { return completion_tokens_; }
  int64_t reasoning_tokens() const override { return parser_->reasoning_tokens(); }

 private:
  // Stop strings concern what the person reads: the content.
  void filter(std::vector<ChatDelta> in, std::vector<ChatDelta>& out) {
    for (ChatDelta& delta : in) {
      if (matched_) return;
      if (delta.kind == ChatDelta::Kind::kContent) {
        StopStrings::Step step = stops_.push(delta.text);
        if (step.matched) {
          matched_ = true;
          stop_string_ = request_.stop[*step.matched];
        }
        delta.text = std::move(step.text);
        if (delta.text.empty()) continue;
      }
      out.push_back(std::move(delta));
    }
  }

  std::string finish(const RequestOutput& output, std::vector<ChatDelta>& deltas) {
    if (matched_) return "stop";
    ChatEnd end = parser_->finish(to_string(output.finish_reason));
    filter(std::move(end.deltas), deltas);
    if (matched_) return "stop";
    if (std::string rest = stops_.finish(); !rest.empty()) {
      deltas.push_back({ChatDelta::Kind::kContent, std::move(rest), 0});
    }
    return end.finish_reason;
  }

  // The JSON of one delta; the role comes with the first one.
  OrderedJson delta_json(const ChatDelta& delta) {
    OrderedJson json = OrderedJson::object();
    if (!std::exchange(role_sent_, true)) json["role"] = "assistant";
    switch (delta.kind) {
      case ChatDelta::Kind::kContent:
        json["content"] = delta.text;
        break;
      case ChatDelta::Kind::kReasoning:
        json["reasoning"] = delta.text;
        json["reasoning_content"] = delta.text;
        break;
      case ChatDelta::Kind::kToolCallStart:
        json["tool_calls"] = {{{"index", delta.tool_index},
                               {"id", new_tool_call_id()},
                               {"type", "function"},
                               {"function", {{"name", delta.text}, {"arguments", ""}}}}};
        break;
      case ChatDelta::Kind::kToolCallArguments:
        json["tool_calls"] = {
            {{"index", delta.tool_index}, {"function", {{"arguments", delta.text}}}}};
        break;
    }
    return json;
  }

  void stream(const std::vector<ChatDelta>& deltas, const std::string& reason,
              const RequestOutput& output, OrderedJson logprobs, OrderedJson traced,
              ChoiceNews& news) {
    for (const ChatDelta& delta : deltas) news.deltas.push_back(event(delta_json(delta)));
    const bool has_side = !logprobs.empty() || !traced.empty();
    if (news.deltas.empty() && (has_side || !reason.empty())) {
      OrderedJson empty = OrderedJson::object();
      if (!std::exchange(role_sent_, true)) empty = {{"role", "assistant"}, {"content", ""}};
      news.deltas.push_back(event(std::move(empty)));
    }
    if (news.deltas.empty()) return;
    if (!logprobs.empty()) news.deltas.front()["logprobs"] = {{"content", std::move(logprobs)}};
    if (request_.return_routed_experts) news.deltas.front()["routed_experts"] = std::move(traced);
    if (request_.return_token_ids) {
      news.deltas.front()["token_ids"] = std::exchange(ids_, OrderedJson::array());
    }
    if (!reason.empty()) {
      news.deltas.back()["finish_reason"] = reason;
      news.deltas.back()["stop_reason"] = stop_reason(request_, stop_string_, output.stop_token);
    }
  }

  OrderedJson event(OrderedJson delta) const {
    return {{"index", index_},
            {"delta", std::move(delta)},
            {"logprobs", nullptr},
            {"finish_reason", nullptr}};
  }

  void collect(const ChatDelta& delta) {
    switch (delta.kind) {
      case ChatDelta::Kind::kContent:
        message_.content += delta.text;
        break;
      case ChatDelta::Kind::kReasoning:
        message_.reasoning += delta.text;
        break;
      case ChatDelta::Kind::kToolCallStart:
        message_.tool_calls.push_back({new_tool_call_id(), delta.text, ""});
        break;
      case ChatDelta::Kind::kToolCallArguments:
        if (!message_.tool_calls.empty()) message_.tool_calls.back().arguments += delta.text;
        break;
    }
  }

  void assemble(const std::string& reason, const RequestOutput& output) {
    OrderedJson message = {{"role", "assistant"}, {"content", nullptr}};
    if (!message_.content.empty() || message_.tool_calls.empty())
      message["content"] = message_.content;
    if (!message_.reasoning.empty()) {
      message["reasoning"] = message_.reasoning;
      message["reasoning_content"] = message_.reasoning;
    }
    for (const auto& call : message_.tool_calls) {
      message["tool_calls"].push_back(
          {{"id", call.id},
           {"type", "function"},
           {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    }
    whole_ = {{"index", index_},
              {"message", std::move(message)},
              {"logprobs", nullptr},
              {"finish_reason", reason},
              {"stop_reason", stop_reason(request_, stop_string_, output.stop_token)}};
    if (request_.sampling.logprobs >= 0) whole_["logprobs"] = {{"content", std::move(logprobs_)}};
    if (request_.return_token_ids) whole_["token_ids"] = std::move(ids_);
    if (request_.return_routed_experts) whole_["routed_experts"] = std::move(traced_);
  }

  ChoiceContext context_;
  const ApiRequest& request_;
  int64_t index_;
  std::unique_ptr<ChatParser> parser_;
  StopStrings stops_;
  bool matched_ = false;
  std::optional<std::string> stop_string_;
  bool role_sent_ = false;
  bool finished_ = false;
  int64_t completion_tokens_ = 0;
  ChatMessage message_;
  OrderedJson ids_ = OrderedJson::array();  // not told yet
  OrderedJson logprobs_ = OrderedJson::array();
  OrderedJson traced_ = OrderedJson::array();
  OrderedJson whole_;
};

}  // namespace

OrderedJson routed_experts(const Tokenizer& tokenizer, const std::vector<OutputToken>& tokens,
                           int64_t top_k) {
  OrderedJson out = OrderedJson::array();
  for (const OutputToken& token : tokens) {
    OrderedJson layers = OrderedJson::array();
    const auto k = static_cast<size_t>(std::max<int64_t>(top_k, 1));
    for (size_t first = 0; first + k <= token.experts.size(); first += k) {
      OrderedJson chosen = OrderedJson::array();
      for (size_t slot = 0; slot < k; ++slot) chosen.push_back(token.experts[first + slot]);
      layers.push_back(std::move(chosen));
    }
    out.push_back({{"text", tokenizer.token_text(token.id)}, {"experts", std::move(layers)}});
  }
  return out;
}

std::unique_ptr<Choice> make_completion_choice(const ChoiceContext& context, int64_t index,
                                               TokenIds prompt) {
  return std::make_unique<CompletionChoice>(context, index, std::move(prompt));
}

std::unique_ptr<Choice> make_chat_choice(const ChoiceContext& context, int64_t index,
                                         const ChatFormat& format, const ChatPrompt& prompt) {
  return std::make_unique<ChatChoice>(context, index, format, prompt);
}

}  // namespace rota
