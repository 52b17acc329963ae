// The measured loop of fma_peak_*.cc, which differ in compile flags: kChains chains of step(sum).
#pragma once

#include <chrono>

namespace rota::bench {
namespace {

// Calls of `step` a second. 12 chains hide a latency of 4 cycles on 2 units and leave registers free.
template <typename Vector, typename Step>
double steps_per_second(Vector start, double seconds, Step step) {
  constexpr int kChains = 12;
  using Clock = std::chrono::steady_clock;
  Vector s0 = start, s1 = start, s2 = start, s3 = start, s4 = start, s5 = start, s6 = start,
         s7 = start, s8 = start, s9 = start, s10 = start, s11 = start;
  const Clock::time_point begin = Clock::now();
  double steps = 0;
  std::chrono::duration<double> taken{};
  do {
    for (int i = 0; i < 100000; ++i) {
      s0 = step(s0), s1 = step(s1), s2 = step(s2), s3 = step(s3), s4 = step(s4), s5 = step(s5);
      s6 = step(s6), s7 = step(s7), s8 = step(s8), s9 = step(s9), s10 = step(s10), s11 = step(s11);
      asm volatile("" : "+x"(s0), "+x"(s1), "+x"(s2), "+x"(s3), "+x"(s4), "+x"(s5));
      asm volatile("" : "+x"(s6), "+x"(s7), "+x"(s8), "+x"(s9), "+x"(s10), "+x"(s11));
    }
    steps += 100000.0 * kChains;
    taken = Clock::now() - begin;
  } while (taken.count() < seconds);
  return steps / taken.count();
}

}  // namespace
}  // namespace rota::bench
