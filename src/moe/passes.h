// How a step's tokens are cut into passes, and a pass over ranks. Every rank takes part in as many
// passes as the one with most tokens needs.
//
// Data-parallel rank g has tokens of its own; the ranks of its tensor-parallel group all have the
// same ones. Where tokens move (prepare_finalize.h), each rank of a group sends an even part of
// them, else each handles all.
//
//   passes.begin_step({5, 0, 9});                    // tokens of each data-parallel rank
//   for (int64_t i = 0; i < passes.count(); ++i) { const MoePass pass = passes.at(i); ... }
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "moe/width_plan.h"

namespace rota {

// Rows among those of this rank's group in the step.
struct MoePass {
  ShardRange group;                         // of the pass
  ShardRange mine;                          // of them: those that this rank sends
  std::span<const int64_t> tokens_of_rank;  // [ranks] that send; valid until the next at()
};

class StepPasses {
 public:
  // tokens: of one rank in a pass at most.
  StepPasses(const ParallelShape& shape, Transport transport, int64_t tokens);

  // As many ranks as share a group's tokens: 1 where each handles all.
  int parts() const { return parts_; }

  // [dp]. Does not allocate.
  void begin_step(std::span<const int64_t> tokens_of_group);
  int64_t count() const { return count_; }
  MoePass at(int64_t index);
  // Of any rank: those that it sends, among its group's.
  ShardRange rows_of(int64_t index, int rank) const;
  int64_t tokens_of(int group) const { return tokens_[static_cast<size_t>(group)]; }
  int64_t tokens_of_mine() const { return tokens_of(shape_.rank / shape_.tp); }

 private:
  ShardRange group_rows(int64_t index, int group) const;

  ParallelShape shape_;
  int parts_;
  int64_t group_tokens_;  // in a pass at most
  int64_t count_ = 0;
  std::vector<int64_t> tokens_;          // [dp] of the step
  std::vector<int64_t> tokens_of_rank_;  // [ranks] of a pass
};

// Part `index` of `parts` of [begin, end): sizes differ by one at most.
ShardRange even_part(ShardRange range, int parts, int index);

}  // namespace rota
