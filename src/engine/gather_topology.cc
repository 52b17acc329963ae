#include "engine/gather_topology.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/load_agreement.h"
#include "moe/plan.h"

namespace rota {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostRanksInLog = 32;

std::string say_place(const LoadedEngine& engine) {
  const Json mine = {host_name(), ::getpid(), engine.team->size(), engine.team->cpus()};
  return mine.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// What rank r holds of every mixture layer, in order.
Result<std::vector<int32_t>> experts_of(const LoadedEngine& engine, int rank) {
  MoeParallel parallel = engine.ranks.parallel;
  parallel.shape.rank = rank;
  ROTA_ASSIGN_OR_RETURN(const ExpertPlaces places, place_experts(engine.config.experts, parallel));
  std::vector<int32_t> experts;
  experts.reserve(static_cast<size_t>(places.map.local_count()));
  for (int64_t local = 0; local < places.map.local_count(); ++local) {
    experts.push_back(static_cast<int32_t>(places.expert(local)));
  }
  std::ranges::sort(experts);  // slots of copies come last
  return experts;
}

Result<RankPlace> place_of(const LoadedEngine& engine, int rank, const std::string& said) {
  const int tp = engine.ranks.shape().tp;
  const Json json = Json::parse(said);
  RankPlace place{.rank = rank,
                  .data_rank = rank / tp,
                  .tensor_rank = rank % tp,
                  .host = json[0].get<std::string>(),
                  .pid = json[1].get<int64_t>(),
                  .threads = json[2].get<int64_t>(),
                  .cpus = json[3].get<std::vector<int32_t>>(),
                  .experts = {}};
  ROTA_ASSIGN_OR_RETURN(place.experts, experts_of(engine, rank));
  return place;
}

// "0-15", or "0, 2, 4 ... 30".
std::string shortened(const std::vector<int32_t>& ids) {
  constexpr size_t kFew = 4;
  if (ids.empty()) return "none";
  if (ids.size() <= kFew) return fmt::format("{}", fmt::join(ids, ", "));
  const auto last = ids.back();
  if (last - ids.front() + 1 == static_cast<int32_t>(ids.size())) {
    return fmt::format("{}-{}", ids.front(), last);
  }
  return fmt::format("{}, {}, {} ... {}", ids[0], ids[1], ids[2], last);
}

}  // namespace

Result<EngineTopology> gather_topology(const LoadedEngine& engine) {
  const MoeParallel& parallel = engine.ranks.parallel;
  EngineTopology topology{.tensor_parallel = parallel.shape.tp,
                          .data_parallel = parallel.shape.dp,
                          .expert_parallel = parallel.shape.expert_parallel,
                          .transport = std::string(to_string(parallel.transport)),
                          .expert_placement = std::string(to_string(parallel.placement)),
                          .experts_move = parallel.experts_move,
                          .redundant_experts = parallel.redundant_experts,
                          .ranks = {}};
  std::vector<std::string> said(1, say_place(engine));
  Communicator& world = *engine.ranks.world;
  if (world.ranks() > 1) {
    ROTA_ASSIGN_OR_RETURN(said, gather_texts(world, said[0]));
  }
  for (int rank = 0; rank < static_cast<int>(said.size()); ++rank) {
    ROTA_ASSIGN_OR_RETURN(RankPlace place, place_of(engine, rank, said[static_cast<size_t>(rank)]));
    topology.ranks.push_back(std::move(place));
  }
  return topology;
}

std::vector<std::string> describe(const EngineTopology& topology) {
  std::vector<std::string> hosts;
  hosts.reserve(topology.ranks.size());
  for (const RankPlace& it : topology.ranks) hosts.push_back(it.host);
  std::ranges::sort(hosts);
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  std::vector<std::string> lines = {fmt::format(
      "{} ranks on {} host(s): data parallel {}, tensor parallel {}, experts {}; tokens travel by "
      "{}",
      topology.ranks.size(), hosts.size(), topology.data_parallel, topology.tensor_parallel,
      topology.expert_parallel ? fmt::format("dealt whole, {}", topology.expert_placement)
                               : "cut, a part of each on every rank",
      topology.transport)};
  if (topology.experts_move) {
    lines.push_back(
        fmt::format("experts move to even out the load (--enable-eplb), {} of each layer "
                    "redundant; at the start:",
                    topology.redundant_experts));
  }
  const size_t shown = std::min(topology.ranks.size(), kMostRanksInLog);
  for (size_t i = 0; i < shown; ++i) {
    const RankPlace& it = topology.ranks[i];
    lines.push_back(fmt::format(
        "rank {} (data {}, tensor {}): host {}, pid {}, {} thread(s) {}, {} experts a layer: {}",
        it.rank, it.data_rank, it.tensor_rank, it.host, it.pid, it.threads,
        it.cpus.empty() ? std::string("not pinned")
                        : fmt::format("on CPUs {}", fmt::join(it.cpus, ",")),
        it.experts.size(), shortened(it.experts)));
  }
  if (shown < topology.ranks.size()) {
    lines.push_back(fmt::format("... and {} more ranks", topology.ranks.size() - shown));
  }
  return lines;
}

}  // namespace rota
