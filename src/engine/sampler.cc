#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/random.h"

namespace rota {
namespace {

Status check_finite(std::span<const float> row, size_t position) {
  if (all_finite(row)) return {};
  return error(StatusCode::kDataLoss,
               "the model gave a logit that is not finite for position {}: its weights may be "
               "damaged; compare the files with their published checksums, or get them again",
               position);
}

// Weights exp((logit - maximum) / temperature), and 0 where min_p says so.
class Weights {
 public:
  Weights(const SamplingParams& params, float maximum)
      : maximum_(maximum),
        inverse_temperature_(1.0f / static_cast<float>(params.temperature)),
        least_(static_cast<float>(params.min_p)) {}  // the most likely token's weight is 1

  float operator()(float logit) const {
    const float weight = std::exp((logit - maximum_) * inverse_temperature_);
    return weight >= least_ ? weight : 0.0f;
  }

 private:
  float maximum_;
  float inverse_temperature_;
  float least_;
};

// One draw over the whole row, in order of token ids.
int32_t draw_from_row(std::span<float> row, const Weights& weights, double uniform) {
  double total = 0;
  for (float& value : row) {
    value = weights(value);
    total += static_cast<double>(value);
  }
  const double target = uniform * total;
  double passed = 0;
  int32_t last = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] == 0) continue;
    last = static_cast<int32_t>(i);
    passed += static_cast<double>(row[i]);
    if (passed > target) break;
  }
  return last;
}

// How many of the sorted candidates the nucleus has: the fewest whose weights sum to top_p of the
// total, one at least. Nothing if more candidates are needed to know.
std::optional<size_t> nucleus_size(std::span<const Candidate> sorted, const Weights& weights,
                                   double nucleus) {
  double passed = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (i > 0 && passed >= nucleus) return i;
    passed += static_cast<double>(weights(sorted[i].logit));
  }
  return passed >= nucleus ? std::optional(sorted.size()) : std::nullopt;
}

// One draw over sorted candidates, the most likely first.
int32_t draw_from_candidates(std::span<const Candidate> sorted, const Weights& weights,
                             double uniform) {
  double total = 0;
  for (const Candidate& candidate : sorted) total += static_cast<double>(weights(candidate.logit));
  const double target = uniform * total;
  double passed = 0;
  int32_t last = sorted.front().token;
  for (const Candidate& candidate : sorted) {
    const float weight = weights(candidate.logit);
    if (weight == 0) break;
    last = candidate.token;
    passed += static_cast<double>(weight);
    if (passed > target) break;
  }
  return last;
}

// top_k first, then top_p of what it left.
int32_t draw_filtered(const SamplingParams& params, std::span<const float> row,
                      const Weights& weights, double uniform, std::vector<Candidate>& scratch) {
  const auto vocab = static_cast<int64_t>(row.size());
  const bool top_k = params.top_k > 0 && params.top_k < vocab;
  double total = 0;
  if (top_k) {
    select_top(row, params.top_k, scratch);
    for (const Candidate& it : scratch) total += static_cast<double>(weights(it.logit));
  } else {
    for (const float logit : row) total += static_cast<double>(weights(logit));
    select_top(row, 256, scratch);
  }
  const double nucleus = params.top_p * total;
  std::optional<size_t> size = nucleus_size(scratch, weights, nucleus);
  // A flat distribution: the nucleus is larger than the first guess.
  for (int64_t n = 4096; !size && !top_k && static_cast<int64_t>(scratch.size()) < vocab; n *= 8) {
    select_top(row, n, scratch);
    size = nucleus_size(scratch, weights, nucleus);
  }
  return draw_from_candidates(std::span(scratch).first(size.value_or(scratch.size())), weights,
                              uniform);
}

int32_t draw(const SamplingInput& input, std::span<float> row, float maximum,
             std::vector<Candidate>& scratch) {
  const SamplingParams& params = *input.params;
  const Weights weights(params, maximum);
  const double u = uniform(input.seed, input.history.tokens.size());
  const auto vocab = static_cast<int64_t>(row.size());
  const bool filtered = (params.top_k > 0 && params.top_k < vocab) || params.top_p < 1.0;
  return filtered ? draw_filtered(params, row, weights, u, scratch)
                  : draw_from_row(row, weights, u);
}

}  // namespace

Sampler::Sampler(int64_t vocab_size, int members) : scratch_(static_cast<size_t>(members)) {
  for (Scratch& scratch : scratch_) {
    scratch.candidates.reserve(static_cast<size_t>(vocab_size));
    scratch.counts.assign(static_cast<size_t>(vocab_size), 0);
  }
}

Status Sampler::sample(int member, std::span<float> row, const SamplingInput& input,
                       Sampled& sampled) {
  const SamplingParams& params = *input.params;
  Scratch& scratch = scratch_[static_cast<size_t>(member)];
  ROTA_RETURN_IF_ERROR(check_finite(row, input.history.tokens.size()));
  if (params.logprobs >= 0) scratch.raw.assign(row.begin(), row.end());

  apply_logits_processors(params, input.history, row, scratch.counts);
  const RowMaximum best = row_maximum(row);
  if (!std::isfinite(best.logit)) {
    return invalid_argument(
        "no token is left to choose from at position {}: min_tokens, logit_bias and the penalties "
        "together ban all of them",
        input.history.tokens.size());
  }
  sampled.token = params.temperature < kGreedyTemperature
                      ? best.token
                      : draw(input, row, best.logit, scratch.candidates);
  sampled.logprobs.reset();
  if (params.logprobs >= 0) {
    sampled.logprobs =
        position_logprobs(scratch.raw, sampled.token, params.logprobs, scratch.candidates);
  }
  return {};
}

Result<PositionLogprobs> Sampler::prompt_logprobs(int member, std::span<const float> row,
                                                  int32_t token, int64_t position, int64_t n) {
  ROTA_RETURN_IF_ERROR(check_finite(row, static_cast<size_t>(position)));
  return position_logprobs(row, token, n, scratch_[static_cast<size_t>(member)].candidates);
}

}  // namespace rota
