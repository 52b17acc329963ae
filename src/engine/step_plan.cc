#include "engine/step_plan.h"

#include <algorithm>

namespace rota {

StepPlan::StepPlan(const StepPlanLimits& limits) {
  token_ids_.reserve(static_cast<size_t>(limits.max_tokens));
  chunks_.reserve(static_cast<size_t>(limits.max_sequences));
  tables_.reserve(static_cast<size_t>(limits.max_sequences * limits.kv_groups));
  logit_rows_.reserve(static_cast<size_t>(limits.max_logit_rows));
  uses_.reserve(static_cast<size_t>(limits.max_logit_rows));
}

void StepPlan::build(std::span<const Chunk> chunks) {
  token_ids_.clear();
  chunks_.clear();
  tables_.clear();
  logit_rows_.clear();
  uses_.clear();
  for (const Chunk& chunk : chunks) add_chunk(chunk);
}

void StepPlan::add_chunk(const Chunk& chunk) {
  Sequence& sequence = *chunk.sequence;
  const auto first_row = static_cast<int64_t>(token_ids_.size());
  const auto tokens = sequence.tokens.begin() + chunk.first;
  token_ids_.insert(token_ids_.end(), tokens, tokens + chunk.tokens);
  // Reserved at the start: the span of a chunk stays where it is while others are added.
  const size_t first_table = tables_.size();
  for (const auto& table : sequence.kv.tables) tables_.emplace_back(table);
  chunks_.push_back({.first_row = first_row,
                     .tokens = chunk.tokens,
                     .first_position = chunk.first,
                     .block_tables = std::span(tables_).subspan(first_table),
                     .state_slot = sequence.kv.state_slot});

  const int64_t prompt_rows = chunk.prompt_logprob_rows();
  const int64_t prompt_end = std::min(chunk.end(), sequence.prompt_tokens - 1);
  for (int64_t p = prompt_end - prompt_rows; p < prompt_end; ++p) use_row(chunk, p, false);
  if (chunk.reaches_the_end() && sequence.generated() < sequence.request.sampling.max_tokens) {
    use_row(chunk, chunk.end() - 1, true);
  }
}

void StepPlan::use_row(const Chunk& chunk, int64_t position, bool samples) {
  const int64_t row = chunks_.back().first_row + position - chunk.first;
  logit_rows_.push_back(static_cast<int32_t>(row));
  uses_.push_back({.sequence = chunk.sequence,
                   .position = position,
                   .row = static_cast<int32_t>(row),
                   .samples = samples});
}

StepBatch StepPlan::batch() const {
  return {.token_ids = token_ids_,
          .chunks = chunks_,
          .logit_rows = logit_rows_,
          .trace = nullptr,
          .tokens_of_group = {}};
}

}  // namespace rota
