// What is asked of the engine and what it says back: token ids, no text.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace rota {

// Every field's default is neutral. Ranges are checked by validate(), before the engine sees them.
struct SamplingParams {
  double temperature = 1.0;  // 0: greedy
  int64_t top_k = 0;         // 0 or -1: off
  double top_p = 1.0;
  double min_p = 0.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  double repetition_penalty = 1.0;
  std::vector<std::pair<int32_t, double>> logit_bias = {};
  std::optional<int64_t> seed = {};  // none: drawn by the engine, and told in the log
  int64_t max_tokens = 16;           // 0: the prompt alone is computed (for prompt_logprobs)
  int64_t min_tokens = 0;            // no end-of-sequence or stop token before that many
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids = {};
  int64_t logprobs = -1;  // -1: none; n >= 0: of the chosen token and of the n most likely ones
  int64_t prompt_logprobs = -1;  // the same for every prompt token but the first
};

inline constexpr int64_t kMaxLogprobs = 20;

// Message names the field: "temperature: -1 is not in [0, 2]". A temperature below 1e-5 is greedy.
Status validate(const SamplingParams& params, int64_t vocab_size);

// Token ids that nobody changes any more. Copies share them: the choices of one request, what is
// checked and what is sent hold the prompt once.
class TokenIds {
 public:
  TokenIds() = default;
  TokenIds(std::vector<int32_t> ids)
      : ids_(std::make_shared<const std::vector<int32_t>>(std::move(ids))) {}
  TokenIds(std::initializer_list<int32_t> ids) : TokenIds(std::vector<int32_t>(ids)) {}

  const std::vector<int32_t>& vector() const {
    static const std::vector<int32_t> kNone;
    return ids_ ? *ids_ : kNone;
  }
  size_t size() const { return vector().size(); }
  bool empty() const { return vector().empty(); }
  auto begin() const { return vector().begin(); }
  auto end() const { return vector().end(); }
  int32_t operator[](size_t index) const { return vector()[index]; }
  bool operator==(const TokenIds& other) const { return vector() == other.vector(); }

 private:
  std::shared_ptr<const std::vector<int32_t>> ids_;
};

struct EngineRequest {
  std::string id = {};  // unique among running requests; echoed in outputs
  TokenIds prompt = {};
  SamplingParams sampling;
  int64_t priority = 0;         // lower runs first
  std::string cache_salt = {};  // prefix cache entries are shared only under the same salt
  bool trace_experts = false;   // outputs carry the experts that served each token
  // A replay: tokens that were generated, and told with their prompt logprobs, by an engine that
  // has died. The request goes on behind them as if it had never stopped; none of them is told
  // again.
  TokenIds generated = {};
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;  // finite; before any sampling filter
  int64_t rank = 0;   // 1: most likely
};

// One position's logprobs: the chosen (or prompt) token first, then the n most likely by falling
// logprob.
using PositionLogprobs = std::vector<TokenLogprob>;

struct OutputToken {
  int32_t id = 0;
  std::optional<PositionLogprobs> logprobs = {};
  // trace_experts: chosen experts of each MoE layer for the position that produced this token
  // [layers * k].
  std::vector<int16_t> experts = {};
};

enum class FinishReason { kNone, kStop, kLength, kAbort, kError };
std::string_view to_string(
    FinishReason reason);  // OpenAI's word: "stop", "length", "abort", "error"

// News of one request after a step. The last one has finish_reason != kNone.
struct RequestOutput {
  std::string id = {};
  std::vector<OutputToken> tokens = {};  // new ones
  std::vector<std::optional<PositionLogprobs>> prompt_logprobs =
      {};  // once, with the first token; [0] is none
  FinishReason finish_reason = FinishReason::kNone;
  // The stop or end token that ended it: the last of `tokens`, but no part of the text.
  std::optional<int32_t> stop_token = {};
  int64_t cached_tokens = 0;  // of the prompt, found in the prefix cache
  Status status = {};         // kError: why, told to the client
};

}  // namespace rota
