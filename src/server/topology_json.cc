#include "server/topology_json.h"

namespace rota {
namespace {

OrderedJson rank_json(const RankPlace& place) {
  return {{"rank", place.rank},
          {"data_rank", place.data_rank},
          {"tensor_rank", place.tensor_rank},
          {"host", place.host},
          {"pid", place.pid},
          {"threads", place.threads},
          {"cpus", place.cpus},
          {"experts", place.experts}};
}

// Sent from rank to rank for each token that was run; nothing before one was.
OrderedJson bytes_a_token(const EngineStats& stats) {
  int64_t bytes = 0;
  int64_t tokens = 0;
  for (const RankStats& it : stats.ranks) {
    bytes += it.payload_bytes;
    tokens += it.tokens;
  }
  if (tokens == 0) return nullptr;
  return static_cast<double>(bytes) / static_cast<double>(tokens);
}

}  // namespace

OrderedJson topology_json(const EngineTopology& topology, const EngineStats& stats) {
  OrderedJson ranks = OrderedJson::array();
  for (const RankPlace& it : topology.ranks) ranks.push_back(rank_json(it));
  return {{"data_parallel_size", topology.data_parallel},
          {"tensor_parallel_size", topology.tensor_parallel},
          {"expert_parallel", topology.expert_parallel},
          {"transport", topology.transport},
          {"expert_placement", topology.expert_placement},
          {"payload_bytes_a_token", bytes_a_token(stats)},
          {"ranks", std::move(ranks)}};
}

}  // namespace rota
