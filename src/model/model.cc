#include "model/model.h"

#include "checkpoint/expected_tensors.h"
#include "model/bind.h"
#include "model/cut_weights.h"
#include "model/decoder.h"

namespace rota {
Result<std::unique_ptr<Model>> load_model(const ModelConfig& config, const Checkpoint& checkpoint,
                                          const ModelOptions& options, ThreadTeam& team) {
  ROTA_RETURN_IF_ERROR(check_tensors(config, checkpoint));
  if (options.verify_weights) {
    ROTA_RETURN_IF_ERROR(verify_linears(checkpoint, dense_linears(config), team));
  }
  ROTA_ASSIGN_OR_RETURN(DecoderWeights weights, bind_decoder(config, checkpoint));
  const RankContext& ranks = options.ranks;
  ROTA_RETURN_IF_ERROR(check_ranks(ranks));
  ROTA_RETURN_IF_ERROR(check_tensor_parallel(config, ranks.shape().tp));
  const TensorShard shard = tensor_shard(config, ranks.shape().tp, ranks.tensor_rank());
  if (ranks.shape().tp > 1) cut_weights(weights, config, shard);
  const ModelConfig here = config_of_rank(config, shard);
  return Decoder::make(
      {.config = config, .here = here, .checkpoint = checkpoint, .options = options, .team = team},
      std::move(weights));
}

}  // namespace rota
