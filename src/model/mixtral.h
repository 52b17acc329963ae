// Mixtral (8x7B and its kin): BF16 experts in one tensor each, plain rope, full attention, SiLU.
#pragma once

#include "model/decoder_weights.h"
#include "model/model.h"

namespace rota {

Result<DecoderWeights> bind_mixtral(const ModelConfig& config, const Checkpoint& checkpoint);

}  // namespace rota
