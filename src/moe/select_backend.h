// The ordered list of experts backends, and the choice: the first that does not refuse, with all
// refusals before it (R9); those in 8 bits are chosen by name only. A backend that is asked for by
// name and refuses is an error.
//
//   ROTA_ASSIGN_OR_RETURN(BackendChoice choice, select_backend(config, context, options.backend));
//   log::info("{}", choice.describe());
//   // cpu_bf16 (cpu_mxfp4_bf16 refused: takes MXFP4 weights, these are BF16)
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "moe/experts.h"

namespace rota {

struct BackendRefusal {
  std::string_view backend;
  std::string reason;
};

struct BackendChoice {
  const ExpertsBackend* backend = nullptr;
  std::vector<BackendRefusal> refused;  // those in front of it in the list
  bool by_name = false;

  std::string describe() const;
};

// Fastest first; the last one, ref, runs everywhere.
std::span<const ExpertsBackend* const> experts_backends();

// `wanted`: empty or "auto", or a name of the list.
Result<BackendChoice> select_backend(const MoeConfig& config, const BackendContext& context,
                                     std::string_view wanted);

}  // namespace rota
