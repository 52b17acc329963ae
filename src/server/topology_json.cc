#include "server/topology_json.h"

#include <numeric>

namespace rota {
namespace {

// Tokens that the experts of a rank served, over all layers; nothing where they are not dealt.
OrderedJson tokens_served(const RankStats& stats) {
  if (stats.expert_tokens.empty()) return nullptr;
  return std::accumulate(stats.expert_tokens.begin(), stats.expert_tokens.end(), int64_t{0});
}

// [MoE layers][experts]: what lies on a rank now; nothing where experts stay where they were at the
// start.
OrderedJson experts_of_layers(const ExpertBalance& balance, int64_t rank) {
  if (balance.held.empty()) return nullptr;
  OrderedJson layers = OrderedJson::array();
  for (const auto& held : balance.held) layers.push_back(held.at(static_cast<size_t>(rank)));
  return layers;
}

OrderedJson rank_json(const RankPlace& place, const RankStats& stats,
                      const ExpertBalance& balance) {
  return {{"rank", place.rank},
          {"data_rank", place.data_rank},
          {"tensor_rank", place.tensor_rank},
          {"host", place.host},
          {"pid", place.pid},
          {"threads", place.threads},
          {"cpus", place.cpus},
          {"experts", place.experts},
          {"experts_of_layers", experts_of_layers(balance, place.rank)},
          {"expert_tokens_served", tokens_served(stats)},
          {"tokens", stats.tokens},
          {"steps", stats.steps},
          {"dummy_steps", stats.dummy_steps},
          {"payload_bytes", stats.payload_bytes},
          {"header_bytes", stats.header_bytes}};
}

// What is known of it so far: one process counts no rank.
RankStats stats_of(const EngineStats& stats, int64_t rank) {
  for (const RankStats& it : stats.ranks) {
    if (it.rank == rank) return it;
  }
  return {};
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

OrderedJson balance_json(const EngineTopology& topology, const EngineStats& stats) {
  if (!topology.experts_move) return nullptr;
  const ExpertBalance& balance = stats.balance;
  return {{"redundant_experts", topology.redundant_experts},
          {"looks", balance.looks},
          {"moves", balance.moves},
          {"imbalance", balance.imbalance > 0 ? OrderedJson(balance.imbalance) : nullptr}};
}

}  // namespace

OrderedJson topology_json(const EngineTopology& topology, const EngineStats& stats) {
  OrderedJson ranks = OrderedJson::array();
  for (const RankPlace& it : topology.ranks) {
    ranks.push_back(rank_json(it, stats_of(stats, it.rank), stats.balance));
  }
  return {{"data_parallel_size", topology.data_parallel},
          {"tensor_parallel_size", topology.tensor_parallel},
          {"expert_parallel", topology.expert_parallel},
          {"transport", topology.transport},
          {"expert_placement", topology.expert_placement},
          {"expert_balance", balance_json(topology, stats)},
          {"payload_bytes_a_token", bytes_a_token(stats)},
          {"ranks", std::move(ranks)}};
}

}  // namespace rota
