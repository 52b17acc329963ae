// One row of logits [V]: what can be read from it, and what a request's parameters do to it.
//
// Contract: a row is read in fixed order, so that its results are the same bits wherever it lies in
// a batch. Among equal logits the lowest token id comes first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"

namespace rota {

struct RowMaximum {
  int32_t token = 0;  // the lowest of the most likely ones
  float logit = 0;
};
RowMaximum row_maximum(std::span<const float> row);

// No NaN, no infinity.
bool all_finite(std::span<const float> row);

// log(sum(exp(row))) of a finite row whose maximum is given.
double log_sum_exp(std::span<const float> row, float maximum);

struct Candidate {
  float logit = 0;
  int32_t token = 0;
  // Sorts the most likely first.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
  }
};

// The n most likely tokens in order; out is room for all V, and keeps its capacity.
void select_top(std::span<const float> row, int64_t n, std::vector<Candidate>& out);

// Logprobs of `token` first, then of the n most likely. row: finite, before any sampling filter.
PositionLogprobs position_logprobs(std::span<const float> row, int32_t token, int64_t n,
                                   std::vector<Candidate>& scratch);

// What the filters need of a sequence besides its parameters.
struct TokenHistory {
  std::span<const int32_t> tokens;  // prompt, then generated
  int64_t prompt_tokens = 0;
  // End-of-sequence and stop tokens, in no order.
  std::span<const int32_t> stop_tokens;
};

// In vLLM's order: min_tokens, logit_bias, then repetition, frequency and presence penalty.
// counts: [V] zeros, and zeros again afterwards.
void apply_logits_processors(const SamplingParams& params, const TokenHistory& history,
                             std::span<float> row, std::span<int32_t> counts);

}  // namespace rota
