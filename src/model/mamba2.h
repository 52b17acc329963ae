// The Mamba2 block of a layer: a projection into z, x, B, C and a step size for each head; a causal
// convolution over x, B and C; the recurrence of each head; a norm gated by z; a projection back,
// added to the residual stream. (transformers: NemotronHMamba2Mixer, without its clamp of the
// step.)
//
// Contract: a row's result depends on its own sequence alone, and a sequence cut into chunks in any
// way gets the same bits. The states lie in the sequence's slot of the cache and begin as zeros at
// position 0. A tensor-parallel rank has some of the groups: what it adds is the sum over the
// ranks.
//
//   block.run({.exec = exec, .chunks = batch.chunks, .cache = cache, .workspace = w}, in, x);
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

namespace rota {

// Of one layer of one sequence: the last inputs of the convolution and each head's state.
Bytes mamba2_state_bytes(const MambaConfig& config);

// Shared by all Mamba2 blocks of a model: they run one after the other.
struct Mamba2Workspace {
  Matrix<float> projected;  // [T, z | x B C | dt]; then the block's output [T, hidden]
  Matrix<float> convolved;  // [T, x | B | C]; y takes the place of x
  Buffer prepared;          // a matmul's input

  static Result<Mamba2Workspace> allocate(const ModelConfig& config, int64_t max_tokens,
                                          Bytes prepared_per_token);
  int64_t bytes() const;
};

struct Mamba2Step {
  const Execution* exec = nullptr;
  std::span<const SequenceChunk> chunks;
  const KvCache* cache = nullptr;
  Mamba2Workspace* workspace = nullptr;
  Communicator* tensor = &loopback();  // the ranks over which groups are cut
};

class Mamba2Block {
 public:
  struct Geometry {
    MambaConfig mamba;  // of this rank
    float norm_eps = 0;
    int64_t state_index = 0;  // the how manieth recurrent layer of the model
  };
  static Result<Mamba2Block> make(Mamba2Weights weights, const Geometry& geometry,
                                  const Execution& exec);

  // Bytes of a token's prepared matmul inputs: what the workspace is sized for.
  Bytes prepared_per_token() const;
  Bytes weight_bytes() const;  // that one token reads

  // in [T, hidden]: the normed input; residual [T, hidden] += the output, which is returned too and
  // valid until the workspace is used again. Fails with its communicator alone.
  Result<MatrixView<const float>> run(const Mamba2Step& step, MatrixView<const float> in,
                                      MatrixView<float> residual) const;

 private:
  Mamba2Block(Linear in_proj, Linear out_proj, Mamba2Weights weights, const Geometry& geometry)
      : in_proj_(std::move(in_proj)),
        out_proj_(std::move(out_proj)),
        weights_(std::move(weights)),
        geometry_(geometry) {}

  // Parts of run(), in order, for one chunk each.
  void convolve(const Mamba2Step& step, const SequenceChunk& chunk, int64_t first_channel,
                int64_t channels) const;
  void scan(const Mamba2Step& step, const SequenceChunk& chunk, int64_t head) const;
  void gate_and_norm(const Mamba2Step& step, int64_t tokens) const;
  Result<MatrixView<const float>> project_back(const Mamba2Step& step,
                                               MatrixView<float> residual) const;

  float* conv_state(const Mamba2Step& step, const SequenceChunk& chunk) const;
  float* head_state(const Mamba2Step& step, const SequenceChunk& chunk, int64_t head) const;

  Linear in_proj_;
  Linear out_proj_;
  Mamba2Weights weights_;
  Geometry geometry_;
};

}  // namespace rota
