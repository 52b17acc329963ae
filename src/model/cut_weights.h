// This rank's part of bound weights: slices of the views, nothing is copied but small vectors.
//
//   ROTA_ASSIGN_OR_RETURN(DecoderWeights weights, bind_decoder(config, checkpoint));
//   cut_weights(weights, config, tensor_shard(config, tp, rank));
// Outputs of attention and Mamba2 are shares of a sum over the tensor-parallel group then, of which
// rank 0's has the bias.
#pragma once

#include "checkpoint/model_config.h"
#include "model/decoder_weights.h"
#include "model/tensor_parallel.h"

namespace rota {

// The size of `shard`'s group has passed check_tensor_parallel().
void cut_weights(DecoderWeights& weights, const ModelConfig& config, const TensorShard& shard);

}  // namespace rota
