// Runs whole sequences through a model without generating: what `rota score` and `rota eval` stand
// on.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/load_engine.h"
#include "model/model.h"

namespace rota {

struct ScoredSequence {
  std::string name;
  std::vector<int32_t> ids;
};

// Rows of a step: sequence `sequence`'s positions [first_position, first_position + tokens) are
// rows [first_row, first_row + tokens) of everything that the step shows.
struct ScoredRows {
  size_t sequence = 0;
  int64_t first_row = 0;
  int64_t first_position = 0;
  int64_t tokens = 0;
};

class ScoreSink {
 public:
  virtual ~ScoreSink() = default;
  // Before each step: which rows come; `trace` calls follow, then logits [T, V].
  virtual ForwardTrace* begin_step(std::span<const ScoredRows> rows) = 0;
  virtual Status logits(std::span<const ScoredRows> rows, MatrixView<const float> logits) = 0;
};

// Options under which `tokens` ids in all fit: pages for each sequence, logits for each row of a
// step.
EngineOptions scoring_options(EngineOptions options, std::span<const ScoredSequence> sequences);

// All sequences as one batch, in steps of at most options.max_num_batched_tokens.
Status score_sequences(LoadedEngine& engine, std::span<const ScoredSequence> sequences,
                       ScoreSink& sink);

}  // namespace rota
