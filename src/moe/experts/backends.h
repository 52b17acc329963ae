// The backends of the list in select_backend.h. Stateless, they live for ever.
//
//   const ExpertsBackend& backend = ref_backend();
#pragma once

#include "moe/experts.h"

namespace rota {

const ExpertsBackend& cpu_mxfp4_bf16_backend();
const ExpertsBackend& cpu_mxfp4_int8_backend();
const ExpertsBackend& cpu_nvfp4_bf16_backend();
const ExpertsBackend& cpu_nvfp4_int8_backend();
const ExpertsBackend& cpu_fp8_bf16_backend();
const ExpertsBackend& cpu_bf16_backend();
const ExpertsBackend& ref_backend();

// What the vector backends refuse about the machine.
std::optional<std::string> refuse_without_vectors(const BackendContext& context);
// What every backend here refuses about a layer: activations that no kernel of ours computes.
std::optional<std::string> refuse_activation(const MoeConfig& config);
// MXFP4 and NVFP4 widths that are no whole number of blocks.
std::optional<std::string> refuse_partial_blocks(const MoeConfig& config);

}  // namespace rota
