// The ranks of an engine: where each runs and what of the model it holds. For people, and
// GET /v1/rota/topology.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rota {

struct RankPlace {
  int64_t rank = 0;
  int64_t data_rank = 0;
  int64_t tensor_rank = 0;
  std::string host;
  int64_t pid = 0;
  int64_t threads = 0;
  std::vector<int32_t> cpus;  // of each thread; empty: not pinned
  // Of every mixture layer, whole or this rank's part of each; where experts move: at the start
  // (ExpertBalance knows where they are).
  std::vector<int32_t> experts;
};

struct EngineTopology {
  int64_t tensor_parallel = 1;
  int64_t data_parallel = 1;
  bool expert_parallel = false;
  std::string transport;         // of tokens to experts: "allgather_reducescatter"
  std::string expert_placement;  // "linear"
  bool experts_move = false;     // --enable-eplb
  int64_t redundant_experts = 0;
  std::vector<RankPlace> ranks;  // in order
};

}  // namespace rota
