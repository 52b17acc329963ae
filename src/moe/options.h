// What the command line may say of the MoE layers.
#pragma once

#include <cstdint>
#include <string>

namespace rota {

struct MoeOptions {
  std::string backend;           // --moe-backend; empty or "auto": the first that does not refuse
  int64_t hidden_alignment = 0;  // --moe-hidden-alignment; 0: what the backend asks for
  int64_t intermediate_alignment = 0;  // --moe-intermediate-alignment
};

}  // namespace rota
