#include "moe/passes.h"

#include <algorithm>

#include "base/check.h"

namespace rota {

ShardRange even_part(ShardRange range, int parts, int index) {
  const int64_t size = range.end - range.begin;
  return {.begin = range.begin + size * index / parts,
          .end = range.begin + size * (index + 1) / parts};
}

StepPasses::StepPasses(const ParallelShape& shape, Transport transport, int64_t tokens)
    : shape_(shape),
      parts_(transport == Transport::kNoDpEp ? 1 : shape.tp),
      group_tokens_(tokens * parts_),
      tokens_(static_cast<size_t>(shape.dp)),
      tokens_of_rank_(static_cast<size_t>(shape.ranks())) {}

void StepPasses::begin_step(std::span<const int64_t> tokens_of_group) {
  ROTA_CHECK(tokens_of_group.size() == tokens_.size(), "a count for each data-parallel rank");
  std::copy(tokens_of_group.begin(), tokens_of_group.end(), tokens_.begin());
  const int64_t most = *std::max_element(tokens_.begin(), tokens_.end());
  count_ = (most + group_tokens_ - 1) / group_tokens_;
}

ShardRange StepPasses::group_rows(int64_t index, int group) const {
  const int64_t tokens = tokens_[static_cast<size_t>(group)];
  return {.begin = std::min(tokens, index * group_tokens_),
          .end = std::min(tokens, (index + 1) * group_tokens_)};
}

ShardRange StepPasses::rows_of(int64_t index, int rank) const {
  const ShardRange rows = group_rows(index, rank / shape_.tp);
  return parts_ == 1 ? rows : even_part(rows, parts_, rank % shape_.tp);
}

MoePass StepPasses::at(int64_t index) {
  for (int rank = 0; rank < shape_.ranks(); ++rank) {
    const ShardRange part = rows_of(index, rank);
    tokens_of_rank_[static_cast<size_t>(rank)] = part.end - part.begin;
  }
  return {.group = group_rows(index, shape_.rank / shape_.tp),
          .mine = rows_of(index, shape_.rank),
          .tokens_of_rank = tokens_of_rank_};
}

}  // namespace rota
