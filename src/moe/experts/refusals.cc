#include <fmt/format.h>

#include "moe/experts/backends.h"

namespace rota {

std::optional<std::string> refuse_without_vectors(const BackendContext& context) {
  if (context.isa != Isa::kRef) return std::nullopt;
  if (context.cpu.avx2) return "needs AVX2 or AVX-512, which --isa ref or ROTA_ISA=ref turns off";
  return fmt::format("needs AVX2 or AVX-512, which this CPU lacks ({})", context.cpu.model_name);
}

std::optional<std::string> refuse_activation(const MoeConfig& config) {
  if (config.activation == ExpertActivation::kSwigluOai && !config.interleaved) {
    return "takes swiglu_oai with interleaved gate and up only";
  }
  if (config.activation == ExpertActivation::kSiluMul && config.interleaved) {
    return "takes silu_mul with gate and up apart only";
  }
  if (!config.gated() && config.interleaved) {
    return fmt::format("takes {} without a gate only", to_string(config.activation));
  }
  return std::nullopt;
}

std::optional<std::string> refuse_partial_blocks(const MoeConfig& config) {
  for (const int64_t width : {config.experts_hidden(), config.intermediate}) {
    if (width % config.code_block() != 0) {
      return fmt::format("takes {} in whole blocks of {}, a width here is {}",
                         to_string(config.format), config.code_block(), width);
    }
  }
  return std::nullopt;
}

}  // namespace rota
