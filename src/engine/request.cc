#include "engine/request.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

namespace rota {
namespace {

// NaN is in no range.
Status in_range(std::string_view field, double value, double low, double high) {
  if (value >= low && value <= high) return {};
  return invalid_argument("{}: {} is not in [{}, {}]", field, value, low, high);
}

Status in_range(std::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid_argument("{}: {} is not in [{}, {}]", field, value, low, high);
}

Status token_in_vocabulary(std::string_view field, int64_t token, int64_t vocab_size) {
  if (token >= 0 && token < vocab_size) return {};
  return invalid_argument("{}: token id {} is not in [0, {}), the model's vocabulary", field, token,
                          vocab_size);
}

// A list longer than the vocabulary can only repeat itself.
Status list_fits(std::string_view field, size_t entries, int64_t vocab_size) {
  if (static_cast<int64_t>(entries) <= vocab_size) return {};
  return invalid_argument("{}: {} entries, but the vocabulary has {} tokens", field, entries,
                          vocab_size);
}

Status validate_logit_bias(const SamplingParams& params, int64_t vocab_size) {
  ROTA_RETURN_IF_ERROR(list_fits("logit_bias", params.logit_bias.size(), vocab_size));
  std::unordered_set<int32_t> seen;
  for (const auto& [token, bias] : params.logit_bias) {
    ROTA_RETURN_IF_ERROR(token_in_vocabulary("logit_bias", token, vocab_size));
    ROTA_RETURN_IF_ERROR(in_range("logit_bias", bias, -100, 100));
    if (!seen.insert(token).second) {
      return invalid_argument("logit_bias: token id {} occurs twice", token);
    }
  }
  return {};
}

Status validate_lengths(const SamplingParams& params) {
  if (params.max_tokens < 0) {
    return invalid_argument("max_tokens: {} is negative", params.max_tokens);
  }
  if (params.min_tokens < 0 || params.min_tokens > params.max_tokens) {
    return invalid_argument("min_tokens: {} is not in [0, max_tokens = {}]", params.min_tokens,
                            params.max_tokens);
  }
  return {};
}

}  // namespace

Status validate(const SamplingParams& params, int64_t vocab_size) {
  ROTA_RETURN_IF_ERROR(in_range("temperature", params.temperature, 0, 2));
  if (params.top_k < -1) {
    return invalid_argument("top_k: {} is neither -1 or 0 (off) nor positive", params.top_k);
  }
  if (!(params.top_p > 0 && params.top_p <= 1)) {
    return invalid_argument("top_p: {} is not in (0, 1]", params.top_p);
  }
  ROTA_RETURN_IF_ERROR(in_range("min_p", params.min_p, 0, 1));
  ROTA_RETURN_IF_ERROR(in_range("presence_penalty", params.presence_penalty, -2, 2));
  ROTA_RETURN_IF_ERROR(in_range("frequency_penalty", params.frequency_penalty, -2, 2));
  ROTA_RETURN_IF_ERROR(in_range("repetition_penalty", params.repetition_penalty, 0.01, 100));
  ROTA_RETURN_IF_ERROR(validate_logit_bias(params, vocab_size));
  ROTA_RETURN_IF_ERROR(validate_lengths(params));
  ROTA_RETURN_IF_ERROR(list_fits("stop_token_ids", params.stop_token_ids.size(), vocab_size));
  for (const int32_t token : params.stop_token_ids) {
    ROTA_RETURN_IF_ERROR(token_in_vocabulary("stop_token_ids", token, vocab_size));
  }
  ROTA_RETURN_IF_ERROR(in_range("logprobs", params.logprobs, -1, kMaxLogprobs));
  return in_range("prompt_logprobs", params.prompt_logprobs, -1, kMaxLogprobs);
}

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "";
}

}  // namespace rota
