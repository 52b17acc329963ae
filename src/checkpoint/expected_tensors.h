// The tensors that a ModelConfig implies: what `rota plan` counts, what dummy weights fill, and
// what a checkpoint must hold before a model is built from it.
//
//   ROTA_RETURN_IF_ERROR(check_tensors(config, checkpoint));
#pragma once

#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/linear.h"
#include "checkpoint/model_config.h"

namespace rota {

// gpt_oss: MXFP4 experts as *_blocks U8 [E, N, K/32, 16], *_scales U8 [E, N, K/32]; BF16 experts
// [E, K, N]. mixtral: block_sparse_moe.experts.X.w1 [I, H], w2 [H, I], w3 [I, H]. Tied embeddings:
// no lm_head.
std::vector<TensorSpec> expected_tensors(const ModelConfig& config);

// The linear layers that every token passes: all but those of the routed experts.
std::vector<LinearSource> dense_linears(const ModelConfig& config);

// Every expected tensor is there with its dtype and shape, and every tensor is expected, but for
// those of which we know why they are not needed. A checkpoint in the other format than config.json
// says (MXFP4 or not) is an error that says so.
Status check_tensors(const ModelConfig& config, const Checkpoint& checkpoint);

}  // namespace rota
