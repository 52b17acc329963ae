// What the ranks of one host take of its memory and its cores together. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "engine/load_agreement.h"
#include "engine/rank_plan.h"
#include "platform/thread_team.h"

namespace rota {

// Bytes of the file that they map, each page once: a rank's experts, or its part of them, are its
// own; attention is that of its place in the tensor-parallel group; the rest is the same on all.
int64_t mapped_bytes_of_host(std::span<const RankPlan> all, std::span<const int> ranks_of_host,
                             int tp);

// Of padded copies: each rank has its own.
int64_t copied_bytes_of_host(std::span<const RankPlan> all, std::span<const int> ranks_of_host);

// A profile of one process becomes that of the ranks on this host: what they map, copy and compute
// in together.
void share_host(std::span<const RankPlan> all, std::span<const int> ranks_of_host, int tp,
                MemoryProfile& profile);

// Threads of one rank's team: what the flag says, else its share of the host's cores. A rank that
// is bound to cores of its own takes all of these.
int threads_of_rank(int flag, int cores, int ranks_of_host, bool bound);

// The same with its place: ranks that are not bound are pinned to cores of their own, where there
// are as many as all of them have threads. pin: as the flag says.
ThreadTeamOptions team_of_rank(int threads, bool pin, int cores, const HostRanks& host);

}  // namespace rota
