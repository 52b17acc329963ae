#include "model/model.h"

#include "checkpoint/expected_tensors.h"
#include "model/bind.h"
#include "model/decoder.h"

namespace rota {
Result<std::unique_ptr<Model>> load_model(const ModelConfig& config, const Checkpoint& checkpoint,
                                          const ModelOptions& options, ThreadTeam& team) {
  ROTA_RETURN_IF_ERROR(check_tensors(config, checkpoint));
  if (options.verify_weights) {
    ROTA_RETURN_IF_ERROR(verify_linears(checkpoint, dense_linears(config), team));
  }
  ROTA_ASSIGN_OR_RETURN(DecoderWeights weights, bind_decoder(config, checkpoint));
  return Decoder::make(
      {.config = config, .checkpoint = checkpoint, .options = options, .team = team},
      std::move(weights));
}

}  // namespace rota
