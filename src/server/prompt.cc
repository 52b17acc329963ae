#include "server/prompt.h"

#include <string>
#include <variant>

namespace rota {

Result<std::vector<int32_t>> encode_prompt(const Tokenizer& tokenizer, const PromptText& prompt,
                                           bool add_special_tokens,
                                           const LengthCheck& check_length) {
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) return *ids;
  const auto& text = std::get<std::string>(prompt);
  if (check_length) ROTA_RETURN_IF_ERROR(check_length(tokenizer.least_tokens(text)));
  Result<std::vector<int32_t>> ids = tokenizer.encode(
      text, {.special = Special::kParse, .add_special_tokens = add_special_tokens});
  if (!ids.ok()) return ids.status().with_context("prompt");
  return ids;
}

ChatRequest chat_of(const ApiRequest& request) {
  ChatRequest chat;
  chat.messages = request.messages;
  chat.tools = request.tools;
  chat.tool_choice = request.tool_choice;
  chat.reasoning_effort = request.reasoning_effort;
  chat.template_kwargs = request.template_kwargs;
  chat.add_generation_prompt = request.add_generation_prompt;
  return chat;
}

Status check_prompt(const ApiRequest& request, const TokenIds& prompt, const EngineInfo& engine) {
  EngineRequest probe;
  probe.prompt = prompt;
  probe.sampling = request.sampling;
  probe.sampling.max_tokens = request.max_tokens.value_or(1);
  return check_request(probe, engine);
}

LengthCheck length_check(const ApiRequest& request, const EngineInfo& engine) {
  return [most = static_cast<uint64_t>(engine.max_model_len),
          completion = static_cast<uint64_t>(request.max_tokens.value_or(1))](size_t least) {
    if (least + completion <= most) return Status();
    return invalid_argument(
        "This model's maximum context length is {} tokens. However, you requested at least {} "
        "tokens ({} or more in the messages, {} in the completion). Please reduce the length of "
        "the messages or completion.",
        most, least + completion, least, completion);
  };
}

}  // namespace rota
