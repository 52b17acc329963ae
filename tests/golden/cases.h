// The grid of the golden tests: packs x kernel tables x precision x padding.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "golden/harness.h"

namespace rota::golden {

struct Case {
  std::string pack;
  const KernelTable* kernels = nullptr;
  Compute compute = Compute::kFloat32;
  MoeOptions moe;

  // Letters, digits and underscores: gptoss_mxfp4_h160_avx2_float32_h256_i128
  std::string name() const;
  HarnessOptions options() const;
};
std::ostream& operator<<(std::ostream& out, const Case& c);

// Every small pack with every kernel table that this CPU can run.
std::vector<Case> pack_cases(Compute compute);

// Experts with 8-bit inputs, where they serve: every pack, kernel table and precision.
std::vector<Case> int8_cases();

// Those of pack_cases, in both precisions, with every experts backend that serves them and every
// padding of hidden (0, 256, 512) and intermediate (0, 128, 256) but none at all. Without
// ROTA_FULL=1 a seeded sample of `sample` cases.
std::vector<Case> padding_cases(size_t sample);

// `cases`, or a seeded sample of them without ROTA_FULL=1.
std::vector<Case> sampled(std::vector<Case> cases, size_t sample);

}  // namespace rota::golden
