#include "model/step.h"

#include <algorithm>
#include <iterator>

namespace rota {
namespace {

// The blocks from the first that any query of the chunk sees to the last that it writes.
Status check_table(const SequenceChunk& chunk, int64_t index, const KvGroup& group,
                   std::span<const int32_t> table, int64_t pages) {
  const int64_t last = (chunk.first_position + chunk.tokens - 1) / kKvBlockTokens;
  if (std::ssize(table) <= last) {
    return invalid_argument("chunk {}: block table of {} entries, position {} needs {}", index,
                            table.size(), chunk.first_position + chunk.tokens - 1, last + 1);
  }
  for (int64_t b = KvSpec::first_live_block(group, chunk.first_position); b <= last; ++b) {
    const int32_t page = table[static_cast<size_t>(b)];
    if (page < 0 || page >= pages) {
      return invalid_argument("chunk {}: block {} is page {}, expected one of the cache's {}",
                              index, b, page, pages);
    }
  }
  return {};
}

Status check_chunk(const SequenceChunk& chunk, int64_t index, int64_t first_row, const KvSpec& spec,
                   const BatchLimits& limits) {
  if (chunk.tokens < 1 || chunk.first_row != first_row) {
    return invalid_argument("chunk {}: rows {} + {}, expected at least one row from {} on", index,
                            chunk.first_row, chunk.tokens, first_row);
  }
  if (chunk.first_position < 0 || chunk.first_position > limits.max_model_len - chunk.tokens) {
    return invalid_argument("chunk {}: positions {} + {}, expected them in [0, {})", index,
                            chunk.first_position, chunk.tokens, limits.max_model_len);
  }
  if (chunk.block_tables.size() != spec.groups.size()) {
    return invalid_argument("chunk {}: {} block tables, expected {}: one a group of layers", index,
                            chunk.block_tables.size(), spec.groups.size());
  }
  if (!spec.state.layers.empty() && (chunk.state_slot < 0 || chunk.state_slot >= limits.slots)) {
    return invalid_argument("chunk {}: state slot {}, expected one of the cache's {}", index,
                            chunk.state_slot, limits.slots);
  }
  for (size_t group = 0; group < spec.groups.size(); ++group) {
    ROTA_RETURN_IF_ERROR(
        check_table(chunk, index, spec.groups[group], chunk.block_tables[group], limits.pages));
  }
  return {};
}

Status check_tokens(const StepBatch& batch, const BatchLimits& limits) {
  const int64_t tokens = std::ssize(batch.token_ids);
  if (tokens < limits.min_tokens || tokens > limits.max_tokens) {
    return invalid_argument("a step of {} tokens, expected {} to {}", tokens, limits.min_tokens,
                            limits.max_tokens);
  }
  if (limits.groups == 1) return {};
  if (std::ssize(batch.tokens_of_group) != limits.groups) {
    return invalid_argument("tokens of {} data-parallel ranks, expected {}",
                            batch.tokens_of_group.size(), limits.groups);
  }
  const int64_t said = batch.tokens_of_group[static_cast<size_t>(limits.group)];
  if (said == tokens) return {};
  return invalid_argument("data-parallel rank {} of {}: {} tokens in the step, {} were announced",
                          limits.group, limits.groups, tokens, said);
}

Status check_rows(const StepBatch& batch, const BatchLimits& limits) {
  const int64_t tokens = std::ssize(batch.token_ids);
  for (int64_t row = 0; row < tokens; ++row) {
    const int32_t id = batch.token_ids[static_cast<size_t>(row)];
    if (id < 0 || id >= limits.vocab) {
      return invalid_argument("row {}: token id {}, expected [0, {})", row, id, limits.vocab);
    }
  }
  for (const int32_t row : batch.logit_rows) {
    if (row < 0 || row >= tokens) {
      return invalid_argument("logits of row {} wanted, the batch has {}", row, tokens);
    }
  }
  return {};
}

}  // namespace

StepLayout::StepLayout(int64_t max_tokens) {
  tiles_.reserve(static_cast<size_t>(max_tokens));
  positions_.reserve(static_cast<size_t>(max_tokens));
}

void StepLayout::set(std::span<const SequenceChunk> chunks) {
  tiles_.clear();
  positions_.clear();
  for (size_t index = 0; index < chunks.size(); ++index) {
    const SequenceChunk& chunk = chunks[index];
    int64_t begin = 0;
    while (begin < chunk.tokens) {
      const int64_t left_in_page = kKvBlockTokens - (chunk.first_position + begin) % kKvBlockTokens;
      const int64_t end = std::min(chunk.tokens, begin + left_in_page);
      tiles_.push_back({.chunk = static_cast<int32_t>(index),
                        .begin = static_cast<int32_t>(begin),
                        .end = static_cast<int32_t>(end)});
      begin = end;
    }
    for (int64_t t = 0; t < chunk.tokens; ++t) {
      positions_.push_back(static_cast<int32_t>(chunk.first_position + t));
    }
  }
}

Status check_batch(const StepBatch& batch, const KvSpec& spec, const BatchLimits& limits) {
  ROTA_RETURN_IF_ERROR(check_tokens(batch, limits));
  const int64_t tokens = std::ssize(batch.token_ids);
  if (std::ssize(batch.logit_rows) > limits.max_logit_rows) {
    return invalid_argument("logits of {} rows wanted, at most {} were planned",
                            batch.logit_rows.size(), limits.max_logit_rows);
  }
  int64_t row = 0;
  for (size_t index = 0; index < batch.chunks.size(); ++index) {
    const SequenceChunk& chunk = batch.chunks[index];
    ROTA_RETURN_IF_ERROR(check_chunk(chunk, static_cast<int64_t>(index), row, spec, limits));
    row += chunk.tokens;
  }
  if (row != tokens) return invalid_argument("{} tokens, but chunks of {} rows", tokens, row);
  return check_rows(batch, limits);
}

}  // namespace rota
