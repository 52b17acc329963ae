// What every layer of one step shares: which rows belong to which sequence, at which positions.
//
// Query tiles cut each chunk at the borders of the 64-position pages, so that a tile writes into
// one page only and tiles can be stored and attended in any order by any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "model/kv_cache.h"
#include "model/model.h"

namespace rota {

struct QueryTile {
  int32_t chunk = 0;
  int32_t begin = 0;  // tokens [begin, end) of the chunk
  int32_t end = 0;
};

// The tiles and positions of a batch, in memory that was taken once.
class StepLayout {
 public:
  explicit StepLayout(int64_t max_tokens);

  // The batch has passed check_batch().
  void set(std::span<const SequenceChunk> chunks);

  std::span<const QueryTile> tiles() const { return tiles_; }
  std::span<const int32_t> positions() const { return positions_; }  // [T]

 private:
  std::vector<QueryTile> tiles_;
  std::vector<int32_t> positions_;
};

// What a batch must keep to; kInvalidArgument names what does not.
struct BatchLimits {
  int64_t vocab = 0;
  int64_t max_tokens = 0;
  int64_t max_logit_rows = 0;
  int64_t max_model_len = 0;
  int64_t pages = 0;
  int64_t slots = 0;
  int64_t min_tokens = 1;  // 0: with other ranks, who may have some
  // Data-parallel ranks, and which of them this is.
  int64_t groups = 1;
  int64_t group = 0;
};
Status check_batch(const StepBatch& batch, const KvSpec& spec, const BatchLimits& limits);

}  // namespace rota
