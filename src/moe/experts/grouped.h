// The grouped computation that all CPU backends share; they differ in kernels and in what they
// take.
//
// Rows (token, chosen expert) are sorted by expert, stably; each expert's rows are then one matmul
// for gate and up, with the activation on the tile while it is in the cache, and one for down.
// Work is cut into (expert, block of rows, tile of columns): experts with many rows first; all
// threads on one expert's columns at a time, so that memory is read in order. No atomics on data,
// no allocation; the bits of a row depend on neither cut.
#pragma once

#include "moe/experts.h"

namespace rota {

class GroupedExperts : public ExpertsBackend {
 public:
  // Rows come out as wide as they went in.
  Extent output(const MoeConfig& config, Extent in) const override;
  Bytes workspace_bytes(const ExpertsSizing& sizing) const override;
  Result<ExpertsOutput> run(const ExpertsRun& run) const override;
};

}  // namespace rota
