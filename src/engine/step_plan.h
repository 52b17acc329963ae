// The chunks of a step as the model takes them, and what each row of its logits is for.
//
//   StepPlan plan(limits);
//   plan.build(chunks);
//   model.forward(plan.batch(), cache, logits);       // logits row i: plan.uses()[i]
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/scheduler.h"
#include "model/model.h"

namespace rota {

// One row of logits: it says what comes after `position` of a sequence.
struct LogitUse {
  Sequence* sequence = nullptr;
  int64_t position = 0;
  int32_t row = 0;      // of the batch
  bool samples = true;  // else: the logprob of the prompt token at position + 1
};

struct StepPlanLimits {
  int64_t max_tokens = 0;
  int64_t max_sequences = 0;
  int64_t max_logit_rows = 0;
  int64_t kv_groups = 0;
};

class StepPlan {
 public:
  explicit StepPlan(const StepPlanLimits& limits);  // nothing allocates afterwards

  void build(std::span<const Chunk> chunks);

  StepBatch batch() const;
  std::span<const LogitUse> uses() const { return uses_; }
  int64_t tokens() const { return static_cast<int64_t>(token_ids_.size()); }

 private:
  void add_chunk(const Chunk& chunk);
  void use_row(const Chunk& chunk, int64_t position, bool samples);

  std::vector<int32_t> token_ids_;
  std::vector<SequenceChunk> chunks_;
  std::vector<std::span<const int32_t>> tables_;  // [chunks * groups]
  std::vector<int32_t> logit_rows_;
  std::vector<LogitUse> uses_;
};

}  // namespace rota
