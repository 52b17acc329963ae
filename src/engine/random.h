// A random number that is a function of (seed, position) alone: batching, preemption and restarts
// never change which number a token is drawn with.
//
//   double u = uniform(seed, position);    // [0, 1), 53 bits
//
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#pragma once

#include <array>
#include <cstdint>

namespace rota {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

double uniform(uint64_t seed, uint64_t position);

// The seed of the `arrival`-th request that brings none, of an engine with that seed.
uint64_t drawn_seed(int64_t engine_seed, uint64_t arrival);

}  // namespace rota
