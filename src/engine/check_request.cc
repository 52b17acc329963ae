#include "base/checked.h"
#include "engine/engine_client.h"

namespace rota {
namespace {

// Entries of prompt_logprobs that one answer may carry: 12 bytes each on their way to the client.
constexpr int64_t kMaxPromptLogprobEntries = 4 << 20;

Status check_tokens(std::string_view field, const TokenIds& tokens, const EngineInfo& info) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t token = tokens[i];
    if (token < 0 || token >= info.vocab_size) {
      return invalid_argument("{}: token id {} at index {} is not in [0, {}), the vocabulary",
                              field, token, i, info.vocab_size);
    }
  }
  return {};
}

Status check_prompt(const EngineRequest& request, const EngineInfo& info) {
  if (request.prompt.empty()) {
    return invalid_argument("prompt: it is empty; at least one token is needed");
  }
  return check_tokens("prompt", request.prompt, info);
}

// One that has all of its tokens has ended: there is nothing to go on with.
Status check_replay(const EngineRequest& request, const EngineInfo& info) {
  const auto generated = static_cast<int64_t>(request.generated.size());
  if (generated > 0 && generated >= request.sampling.max_tokens) {
    return invalid_argument("generated: {} tokens, but max_tokens is {}", generated,
                            request.sampling.max_tokens);
  }
  return check_tokens("generated", request.generated, info);
}

// The wording is the one that clients of the OpenAI API look for.
Status check_context_length(const EngineRequest& request, const EngineInfo& info) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t completion = request.sampling.max_tokens;
  const std::optional<int64_t> total = checked_add(prompt, completion);
  if (total && *total <= info.max_model_len) return {};
  return invalid_argument(
      "This model's maximum context length is {} tokens. However, you requested {} tokens ({} in "
      "the messages, {} in the completion). Please reduce the length of the messages or "
      "completion.",
      info.max_model_len, static_cast<uint64_t>(prompt) + static_cast<uint64_t>(completion), prompt,
      completion);
}

Status check_cache_size(const EngineRequest& request, const EngineInfo& info) {
  const int64_t total = static_cast<int64_t>(request.prompt.size()) + request.sampling.max_tokens;
  if (total <= info.max_sequence_tokens) return {};
  return invalid_argument(
      "The request needs room for {} tokens ({} in the messages, {} in the completion), but the "
      "whole KV cache holds {} tokens of one sequence. Ask for fewer, or start the server with "
      "more "
      "memory (--kv-cache-memory-bytes or --memory-utilization).",
      total, request.prompt.size(), request.sampling.max_tokens, info.max_sequence_tokens);
}

Status check_answer_size(const EngineRequest& request) {
  if (request.sampling.prompt_logprobs < 0) return {};
  const int64_t entries =
      static_cast<int64_t>(request.prompt.size()) * (request.sampling.prompt_logprobs + 1);
  if (entries <= kMaxPromptLogprobEntries) return {};
  return invalid_argument(
      "prompt_logprobs: {} for each of {} prompt tokens would be {} entries, at most {} are "
      "answered; ask for fewer or shorten the prompt",
      request.sampling.prompt_logprobs, request.prompt.size(), entries, kMaxPromptLogprobEntries);
}

}  // namespace

Status check_request(const EngineRequest& request, const EngineInfo& info) {
  ROTA_RETURN_IF_ERROR(validate(request.sampling, info.vocab_size));
  ROTA_RETURN_IF_ERROR(check_context_length(request, info));
  ROTA_RETURN_IF_ERROR(check_prompt(request, info));
  ROTA_RETURN_IF_ERROR(check_replay(request, info));
  ROTA_RETURN_IF_ERROR(check_cache_size(request, info));
  return check_answer_size(request);
}

Status check_queue(int64_t live, const EngineInfo& info) {
  if (live < info.max_num_seqs + info.max_waiting) return {};
  return error(StatusCode::kResourceExhausted,
               "the queue is full: {} requests run or wait (--max-num-seqs {}, --max-waiting {}); "
               "try again later",
               live, info.max_num_seqs, info.max_waiting);
}

}  // namespace rota
