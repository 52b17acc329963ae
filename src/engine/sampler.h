// From a row of logits to the next token of a sequence.
//
// Contract: the token is a function of the row, the parameters, the sequence's own tokens, its seed
// and the position to fill: nothing of the batch and nothing of earlier requests enters. Filters in
// vLLM's order: logits processors, greedy, or temperature, min_p, top_k, top_p, then one draw. The
// row is overwritten. Does not allocate after construction, unless logprobs are asked for.
// A row with a non-finite logit, or one of which nothing is left, is an error for that sequence.
//
//   Sampler sampler(vocab_size, team.size());
//   Status status = sampler.sample(member, row, input, sampled);
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/logits.h"
#include "engine/request.h"

namespace rota {

struct SamplingInput {
  const SamplingParams* params = nullptr;
  TokenHistory history;  // the position to fill is history.tokens.size()
  uint64_t seed = 0;
};

struct Sampled {
  int32_t token = 0;
  std::optional<PositionLogprobs> logprobs = {};
};

class Sampler {
 public:
  // members: how many threads may sample at once, each with its own number below it.
  Sampler(int64_t vocab_size, int members);

  Status sample(int member, std::span<float> row, const SamplingInput& input, Sampled& sampled);

  // Logprobs of the prompt token at `position` under the row of the position before it.
  Result<PositionLogprobs> prompt_logprobs(int member, std::span<const float> row, int32_t token,
                                           int64_t position, int64_t n);

 private:
  struct Scratch {
    std::vector<Candidate> candidates;  // room for V
    std::vector<int32_t> counts;        // [V] zeros
    std::vector<float> raw;             // the row before the filters, where logprobs are asked for
  };
  std::vector<Scratch> scratch_;
};

// Below this a temperature is greedy (vLLM's bound): dividing by it would only overflow.
inline constexpr double kGreedyTemperature = 1e-5;

}  // namespace rota
