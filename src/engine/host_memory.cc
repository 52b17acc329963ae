#include "engine/host_memory.h"

#include <algorithm>
#include <set>

namespace rota {

int64_t mapped_bytes_of_host(std::span<const RankPlan> all, std::span<const int> ranks_of_host,
                             int tp) {
  int64_t bytes = 0;
  int64_t shared = 0;
  std::set<int> places;  // in the tensor-parallel group
  for (const int rank : ranks_of_host) {
    const RankPlan& plan = all[static_cast<size_t>(rank)];
    bytes += plan.expert_bytes - plan.copied_bytes;
    if (places.insert(rank % tp).second) bytes += plan.attention_bytes;
    shared = std::max(shared, plan.embedding_bytes + plan.other_bytes);
  }
  return bytes + shared;
}

int64_t copied_bytes_of_host(std::span<const RankPlan> all, std::span<const int> ranks_of_host) {
  int64_t bytes = 0;
  for (const int rank : ranks_of_host) bytes += all[static_cast<size_t>(rank)].copied_bytes;
  return bytes;
}

void share_host(std::span<const RankPlan> all, std::span<const int> ranks_of_host, int tp,
                MemoryProfile& profile) {
  profile.ranks_of_host = static_cast<int>(ranks_of_host.size());
  profile.weight_bytes =
      std::min(profile.weight_bytes, mapped_bytes_of_host(all, ranks_of_host, tp));
  profile.copied_bytes = copied_bytes_of_host(all, ranks_of_host);
  profile.workspace_bytes *= profile.ranks_of_host;
}

int threads_of_rank(int flag, int cores, int ranks_of_host, bool bound) {
  if (flag > 0 || ranks_of_host == 1 || bound) return flag;
  return std::max(1, cores / ranks_of_host);
}

ThreadTeamOptions team_of_rank(int threads, bool pin, int cores, const HostRanks& host) {
  ThreadTeamOptions team{.threads = threads_of_rank(threads, cores, host.count(), host.bound),
                         .pin = pin};
  if (host.bound || host.count() == 1) return team;
  team.first_core = host.index * team.threads;
  team.crowded = host.count() * team.threads > cores;
  return team;
}

}  // namespace rota
