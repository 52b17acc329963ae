// What the flags of parallel_options.h mean here: ranks, and how tokens reach those of their
// experts.
//
//   ROTA_ASSIGN_OR_RETURN(ParallelChoice parallel, choose_parallel(options.parallel));
//
// Tensor parallel x data parallel ranks. Without --enable-expert-parallel every expert is cut over
// all of them; with it an expert is whole and the experts are dealt over all of them. Tokens are
// sent to their experts only where data parallel > 1 and experts are dealt; where experts are cut
// and data parallel > 1, every rank gathers all tokens.
//
// With --enable-eplb experts move between ranks. Refused where tokens do not travel: with one
// data-parallel rank each rank adds up the shares of its own experts first, and an answer would
// depend on who lies where.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/parallel_options.h"
#include "moe/plan.h"

namespace rota {

inline constexpr int kMaxRanks = 1000;  // tensor parallel times data parallel
inline constexpr double kLeastRankTimeout = 1, kMostRankTimeout = 86400;  // seconds

struct ParallelChoice {
  ParallelShape shape;
  Transport transport = Transport::kNoDpEp;
  ExpertPlacement placement = ExpertPlacement::kLinear;
  bool experts_move = false;
  int64_t redundant_experts = 0;
  // A flag that was given and does nothing here, and why; or empty.
  std::string unused_flag;
  std::string unused_because;

  MoeParallel of_rank(int rank) const;
};

// Fails for sizes out of range and for words that are none; the message names the flag.
Result<ParallelChoice> choose_parallel(const ParallelOptions& options);

// For commands that look into the engine in their own process: they have no ranks.
Status check_one_rank(std::string_view command, const ParallelOptions& options);

}  // namespace rota
