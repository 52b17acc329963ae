// How many ranks share a model, as the command line says it: vLLM's flags and words. What they mean
// here: parallel_choice.h.
#pragma once

#include <string>

namespace rota {

struct ParallelOptions {
  int tensor_parallel_size = 1;
  int data_parallel_size = 1;
  bool enable_expert_parallel = false;
  std::string all2all_backend = {};  // empty: allgather_reducescatter
  std::string expert_placement_strategy = "linear";
  double rank_timeout = 60;        // seconds that ranks wait for one that does not come
  bool check_collectives = false;  // compare every operation over the ranks
};

}  // namespace rota
