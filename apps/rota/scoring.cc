#include "rota/scoring.h"

#include <algorithm>

namespace rota {
namespace {

constexpr int64_t kStepTokens = 512;

int64_t blocks_of(int64_t tokens) { return round_up(tokens, kKvBlockTokens) / kKvBlockTokens; }

// One sequence's block tables: scoring never frees a page, so every group keeps all of them.
struct Tables {
  std::vector<std::vector<int32_t>> pages;      // [groups][blocks]
  std::vector<std::span<const int32_t>> spans;  // of pages

  static Tables make(size_t groups, int64_t blocks, int32_t& next_page) {
    Tables tables;
    for (size_t g = 0; g < groups; ++g) {
      auto& group = tables.pages.emplace_back();
      for (int64_t b = 0; b < blocks; ++b) group.push_back(next_page++);
    }
    for (const auto& group : tables.pages) tables.spans.emplace_back(group);
    return tables;
  }
};

// Fills a step with rows from the sequences in order, from (sequence, position) on, at most `most`
// of them at once.
struct Cursor {
  size_t sequence = 0;
  int64_t position = 0;

  std::vector<ScoredRows> take(std::span<const ScoredSequence> sequences, int64_t room,
                               size_t most) {
    std::vector<ScoredRows> rows;
    int64_t row = 0;
    while (room > 0 && sequence < sequences.size() && rows.size() < most) {
      const auto length = static_cast<int64_t>(sequences[sequence].ids.size());
      const int64_t tokens = std::min(room, length - position);
      rows.push_back({sequence, row, position, tokens});
      row += tokens;
      room -= tokens;
      position += tokens;
      if (position == length) {
        ++sequence;
        position = 0;
      }
    }
    return rows;
  }
};

}  // namespace

EngineOptions scoring_options(EngineOptions options, std::span<const ScoredSequence> sequences) {
  int64_t longest = 1;
  for (const ScoredSequence& one : sequences)
    longest = std::max(longest, static_cast<int64_t>(one.ids.size()));
  options.max_num_batched_tokens = kStepTokens;
  // Load sizes logits by running sequences and the cache by their number and length.
  options.max_num_seqs = std::max<int64_t>(kStepTokens, static_cast<int64_t>(sequences.size()));
  if (options.max_model_len == 0) options.max_model_len = longest;
  return options;
}

Status score_sequences(LoadedEngine& engine, std::span<const ScoredSequence> sequences,
                       ScoreSink& sink) {
  Model& model = *engine.model;
  const int64_t vocab = model.config().vocab;
  const size_t groups = model.kv_spec().groups.size();
  int32_t next_page = 0;
  std::vector<Tables> tables;
  for (const ScoredSequence& one : sequences) {
    const auto length = static_cast<int64_t>(one.ids.size());
    if (length == 0) return invalid_argument("{}: has no token ids", one.name);
    if (length > engine.kv.max_model_len) {
      return invalid_argument("{}: has {} tokens, more than the {} of --max-model-len", one.name,
                              length, engine.kv.max_model_len);
    }
    for (const int32_t id : one.ids) {
      if (id < 0 || id >= vocab) {
        return invalid_argument("{}: token id {} is not below the vocabulary's {}", one.name, id,
                                vocab);
      }
    }
    tables.push_back(Tables::make(groups, blocks_of(length), next_page));
  }
  if (next_page > engine.cache->pages()) {
    return error(
        StatusCode::kResourceExhausted,
        "the sequences need {} KV pages and {} fit; score fewer at a time (--alone) or raise "
        "--kv-cache-memory-bytes",
        next_page, engine.cache->pages());
  }
  const int64_t step_tokens = engine.options.max_num_batched_tokens;
  ROTA_ASSIGN_OR_RETURN(const Matrix<float> logits,
                        Matrix<float>::allocate(step_tokens, Extent(vocab)));
  // Sequences run in order, so that those of a step have slots of their own.
  const bool has_states = engine.cache->slots() > 0;
  const size_t most = has_states ? static_cast<size_t>(engine.cache->slots()) : sequences.size();
  Cursor cursor;
  while (cursor.sequence < sequences.size()) {
    const std::vector<ScoredRows> rows = cursor.take(sequences, step_tokens, most);
    std::vector<int32_t> ids;
    std::vector<int32_t> logit_rows;
    std::vector<SequenceChunk> chunks;
    for (const ScoredRows& part : rows) {
      const auto& all = sequences[part.sequence].ids;
      for (int64_t i = 0; i < part.tokens; ++i) {
        logit_rows.push_back(static_cast<int32_t>(ids.size()));
        ids.push_back(all[static_cast<size_t>(part.first_position + i)]);
      }
      chunks.push_back(
          {.first_row = part.first_row,
           .tokens = part.tokens,
           .first_position = part.first_position,
           .block_tables = tables[part.sequence].spans,
           .state_slot = has_states ? static_cast<int32_t>(part.sequence % most) : -1});
    }
    StepBatch batch{ids, chunks, logit_rows, sink.begin_step(rows)};
    const MatrixView<float> out = logits.rows_view(static_cast<int64_t>(ids.size()));
    ROTA_RETURN_IF_ERROR(model.forward(batch, *engine.cache, out));
    ROTA_RETURN_IF_ERROR(sink.logits(rows, out));
  }
  return {};
}

}  // namespace rota
