// Bytes that leave a rank in a pass of a mixture: what Communicator::traffic() counts, exactly.
// Pure:
// `rota plan` prints them, a test holds the two together.
//
//   const TransferSize size = transfer_size(plan);
//   size.out * remote_ranks_of_a_token + size.home * remote_slots + size.pass
#pragma once

#include <span>

#include "moe/plan.h"
#include "moe/routing.h"

namespace rota {

struct TransferSize {
  // A token, to each other rank that it goes to: to all (allgather), to those of its experts
  // (alltoallv). low_latency: each of its slots, to the rank of its expert. no_dp_ep: none.
  Bytes out;
  // Back: a slot's row, to its token's home. Where experts are cut: a token's share, from each
  // rank.
  Bytes home;
  Bytes pass;  // whatever is sent: counts
  // Where tensor-parallel ranks share the tokens: a token's sum, to each of the others.
  Bytes group;
  // What ranks add up without moving tokens: the experts' shares (no_dp_ep), and the shared
  // experts', which are cut over a tensor-parallel group. Of one token; of several together it is
  // theirs but for a few elements that do not divide by the ranks (sent_in_pass(),
  // sent_for_shared()).
  Bytes sum;
};
TransferSize transfer_size(const MoePlan& plan);

// What plan's rank sends to others in a pass. ids_of_rank [ranks]: of the tokens that each rank
// sends, as the plan's map deals them; weights are not looked at.
Bytes sent_in_pass(const MoePlan& plan, std::span<const TopK> ids_of_rank);

// And for the sum of shared experts over its tensor-parallel group, once for all passes of a step
// of so many tokens.
Bytes sent_for_shared(const MoePlan& plan, int64_t tokens);

}  // namespace rota
