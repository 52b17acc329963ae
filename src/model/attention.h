// The attention block of a layer: q, k, v (with bias, each head normed where the layer says so),
// rotary positions, the KV cache, softmax over the pages (sinks and window where the layer has
// them), output projection added to the residual stream.
//
// Contract: a row's result depends on its own sequence alone. Keys and values of the step are
// stored before any query attends. in [T, hidden] is the normed input; residual [T, hidden] += the
// block's output. A tensor-parallel rank has some of the heads: what it adds is the sum over the
// ranks.
//
//   ROTA_RETURN_IF_ERROR(block.run({.exec = exec, .chunks = batch.chunks, ...}, in, x));
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/model_config.h"
#include "comm/communicator.h"
#include "kernels/execution.h"
#include "kernels/linear.h"
#include "model/decoder_weights.h"
#include "model/kv_cache.h"
#include "model/step.h"

namespace rota {

// Shared by all attention blocks of a model: they run one after the other.
struct AttentionWorkspace {
  Matrix<float> qkv;       // [T, (heads + 2 kv_heads) * head_dim], or the projection [T, hidden]
  Matrix<float> attended;  // [T, heads * head_dim]
  Buffer prepared;         // a matmul's input

  static Result<AttentionWorkspace> allocate(const ModelConfig& config, int64_t max_tokens,
                                             Bytes prepared_per_token);
};

struct AttentionStep {
  const Execution* exec = nullptr;
  std::span<const SequenceChunk> chunks;
  const StepLayout* layout = nullptr;
  KvCache* cache = nullptr;
  const float* cos = nullptr;  // [T, head_dim / 2]; none: the model does not rotate
  const float* sin = nullptr;
  AttentionWorkspace* workspace = nullptr;
  Communicator* tensor = &loopback();  // the ranks over which heads are cut
};

class AttentionBlock {
 public:
  struct Geometry {
    int64_t heads = 0;   // here, as in `kv`
    int64_t window = 0;  // 0: full
    float norm_eps = 0;  // of q_norm and k_norm
    KvShape kv;
    KvPlace place;
  };
  static Result<AttentionBlock> make(AttentionWeights weights, const Geometry& geometry,
                                     const Execution& exec);

  // Bytes of a token's prepared matmul inputs: what the workspace is sized for.
  Bytes prepared_per_token() const;
  Bytes weight_bytes() const;  // that one token reads

  // Fails with its communicator alone.
  Status run(const AttentionStep& step, MatrixView<const float> in,
             MatrixView<float> residual) const;

 private:
  AttentionBlock(Linear qkv, Linear o, AttentionWeights weights, const Geometry& geometry)
      : qkv_(std::move(qkv)),
        o_(std::move(o)),
        sinks_(std::move(weights.sinks)),
        q_norm_(weights.q_norm),
        k_norm_(weights.k_norm),
        geometry_(geometry) {}

  KvPages pages(const AttentionStep& step, const QueryTile& tile) const;
  void norm_heads(const AttentionStep& step, const QueryTile& tile) const;
  void rotate_and_store(const AttentionStep& step, const QueryTile& tile) const;
  void attend(const AttentionStep& step, const QueryTile& tile, int64_t kv_head, int member) const;

  Linear qkv_;
  Linear o_;
  std::vector<float> sinks_;
  const Bf16* q_norm_;
  const Bf16* k_norm_;
  Geometry geometry_;
};

}  // namespace rota
