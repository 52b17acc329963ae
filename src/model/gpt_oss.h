// gpt-oss (20b, 120b): MXFP4 or BF16 experts, attention with sinks, biases and alternating windows,
// YaRN, clamped SwiGLU over interleaved rows.
#pragma once

#include "model/decoder_weights.h"
#include "model/model.h"

namespace rota {

Result<DecoderWeights> bind_gpt_oss(const ModelConfig& config, const Checkpoint& checkpoint);

}  // namespace rota
