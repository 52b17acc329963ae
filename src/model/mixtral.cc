#include "model/mixtral.h"

#include "model/bind.h"

namespace rota {

Result<DecoderWeights> bind_mixtral(const ModelConfig& config, const Checkpoint& checkpoint) {
  ROTA_ASSIGN_OR_RETURN(DecoderWeights weights, bind_frame(config, checkpoint));
  for (int64_t n = 0; n < config.layers; ++n) {
    ROTA_ASSIGN_OR_RETURN(DecoderLayerWeights layer,
                          bind_layer(config, checkpoint, fmt::format("model.layers.{}", n),
                                     moe_tensor_names(Architecture::kMixtral, n)));
    weights.layers.push_back(std::move(layer));
  }
  return weights;
}

}  // namespace rota
