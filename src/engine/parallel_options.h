// How many ranks share a model, as the command line says it: vLLM's flags and words. What they mean
// here: parallel_choice.h.
#pragma once

#include <cstdint>
#include <string>

namespace rota {

struct ParallelOptions {
  int tensor_parallel_size = 1;
  int data_parallel_size = 1;
  bool enable_expert_parallel = false;
  std::string all2all_backend = {};  // empty: allgather_reducescatter
  std::string expert_placement_strategy = "linear";
  bool enable_eplb = false;           // experts move between ranks, to even out the load
  int64_t num_redundant_experts = 0;  // with it: copies of popular experts, in each layer
  int64_t eplb_window_size = 1000;    // steps whose load is looked at
  int64_t eplb_step_interval = 3000;  // steps between two looks
  double rank_timeout = 60;           // seconds that ranks wait for one that does not come
  bool check_collectives = false;     // compare every operation over the ranks
};

}  // namespace rota
