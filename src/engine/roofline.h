// What a token costs at least, and how many a second a machine can make of it at most: bytes of
// memory that must be read, arithmetic that must be done. Pure functions; docs/operations.md shows
// how to read them.
//
//   const TokenCost cost = decode_cost(work, {.tokens = 1, .tokens_of_sequence = 4096});
//   const RateBound bound = rate_bound(cost, {.bytes_per_second = 40e9, .flop_per_second = 1e12}, work.dp);
//
// Counted: weights (padding too: it is read and computed on), KV cache, recurrent states; 2 FLOP
// for each weight that a token meets, 4 for each element of each query head at each position it
// sees. Not counted: activations, norms' arithmetic, softmax, what ranks send one another. Experts
// are taken as chosen evenly: n tokens meet E (1 - (1 - k/E)^n) of them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/rank_plan.h"

namespace rota {

// What one rank does for the tokens that come by. All layers together.
struct RankWork {
  struct Dense {
    std::string_view name;
    double step_bytes = 0;   // read once a step, for however many tokens
    double token_bytes = 0;  // read for each token
    double token_flop = 0;
    bool last_only = false;  // of a prompt, its last token alone
  };
  std::vector<Dense> dense;

  int64_t experts = 1;  // of a layer, on all ranks
  int64_t top_k = 0;
  int64_t experts_here = 0;
  int64_t moe_layers = 0;
  double expert_bytes = 0;  // of one expert's part here, in one layer
  double expert_flop = 0;   // of one token in it

  struct Attention {
    int64_t window = 0;      // 0: full
    double token_bytes = 0;  // of the KV cache, all layers of the group
    double token_flop = 0;   // of one query at one position it sees, all layers
  };
  std::vector<Attention> attention;
  double state_bytes = 0;  // of a sequence: read and written once a step
  double state_flop = 0;   // of a token

  int dp = 1;  // ranks whose tokens come by here, each with as many
};

RankWork rank_work(const RankInputs& inputs, const RankPlan& rank);

struct PartCost {
  std::string_view name;
  double bytes = 0;
  double flop = 0;
};
struct TokenCost {
  std::vector<PartCost> parts;  // those that cost nothing are left out
  double bytes = 0;
  double flop = 0;
  double intensity() const { return flop / bytes; }  // FLOP a byte
};

struct StepShape {
  int64_t tokens = 1;  // of one step on one data-parallel rank
  int64_t tokens_of_sequence =
      1;  // decode: in the cache, the new one among them; prompt: its length
};

// A token of a step that decodes one token of each of `tokens` sequences.
TokenCost decode_cost(const RankWork& work, const StepShape& step);
// A token of a prompt that is read `tokens` at a time, on average.
TokenCost prompt_cost(const RankWork& work, const StepShape& step);

struct MachineSpeed {
  double bytes_per_second = 0;  // 0: not known
  double flop_per_second = 0;
};
struct RateBound {
  double tokens_per_second = 0;  // of all data-parallel ranks; 0: nothing is known
  bool by_memory = true;         // what binds: memory, or arithmetic
};
RateBound rate_bound(const TokenCost& cost, const MachineSpeed& each_rank, int dp);

}  // namespace rota
