// A loaded model: token ids in, logits out, over a paged KV cache that the engine hands out.
//
// A step runs any mixture of prefill chunks and decodes at once. Rows of a batch are independent:
// the logits of a row depend on its own sequence alone, bit for bit (design section 6).
//
//   ROTA_ASSIGN_OR_RETURN(auto model, load_model(config, checkpoint, options, team));
//   ROTA_ASSIGN_OR_RETURN(KvCache cache, KvCache::allocate(model->kv_spec(), pages));
//   model->forward(batch, cache, logits);      // logits [batch.logit_rows.size(), V]
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_config.h"
#include "kernels/kernels.h"
#include "model/ranks.h"
#include "moe/options.h"
#include "platform/thread_team.h"
#include "tensor/matrix.h"

namespace rota {

class KvCache;
class MoeLayer;

// Layers whose KV pages live and die together: all full-attention layers, or all layers of one
// window. A page covers kKvBlockTokens positions in every layer of its group; all groups take pages
// from one pool.
struct KvGroup {
  // 0: full attention, every page is kept; else only pages the window still reaches.
  int64_t window = 0;
  std::vector<int> layers;  // model layer numbers
};

// What a sequence keeps of the layers that are recurrences (Mamba2): convolution and SSM state, of
// one size however long the sequence is. It lies beside the pages in slots of the same cache.
struct StateSpec {
  std::vector<int> layers;  // model layer numbers, ascending; empty: there is no such layer
  Bytes layer_bytes;        // of one layer in a slot, a multiple of a cache line
  Bytes slot_bytes() const { return layer_bytes * static_cast<int64_t>(layers.size()); }
};

struct KvSpec {
  KvShape shape;
  std::vector<KvGroup> groups;
  Bytes layer_bytes;  // of one layer in a page
  Bytes page_bytes;   // of the largest group
  StateSpec state;
  // Bytes of cache that one more token costs a long sequence: windows do not grow.
  Bytes bytes_per_token() const;
  // The first block that a query at `position` still sees in `group`: what lies before may be
  // freed.
  static int64_t first_live_block(const KvGroup& group, int64_t position);
};

// The layers of a config, grouped: full attention first, then the window layers; and the recurrent
// ones' states. Pure: `rota plan` asks it too.
KvSpec make_kv_spec(const ModelConfig& config, Compute compute, const KernelTable& kernels);

// One sequence's part of a step: `tokens` consecutive positions.
struct SequenceChunk {
  int64_t first_row = 0;  // its rows in the batch are [first_row, first_row + tokens)
  int64_t tokens = 0;
  int64_t first_position = 0;
  // One table a KvGroup: page of each block of 64 positions from 0 to the chunk's last one; -1
  // where a window has moved on. No two sequences share a page that this step writes.
  std::span<const std::span<const int32_t>> block_tables;
  // Where the model has recurrent layers: the slot that holds the sequence's state after
  // first_position tokens (whatever it holds if that is 0), and after the step that after all of
  // the chunk's. No two sequences share a slot.
  int32_t state_slot = -1;
};

// What tests and `rota score --dump` look at; called in layer order from the stepping thread.
class ForwardTrace {
 public:
  virtual ~ForwardTrace() = default;
  // index 0: the embedding; 1..L: output of layer index-1 (residual stream); L+1: the final norm.
  // [T, H]
  virtual void hidden(int index, MatrixView<const float> value) = 0;
  // Chosen experts of a MoE layer: ids, weights [T, k], by falling weight (falling choice score,
  // where a correction bias chooses). All layer numbers are the model's.
  virtual void router(int layer, std::span<const int32_t> ids, std::span<const float> weights,
                      int64_t top_k) = 0;
  // The MoE block of a layer: its normed input and its output, before the residual. [T, H]
  virtual void moe(int layer, MatrixView<const float> in, MatrixView<const float> out) {
    static_cast<void>(layer), static_cast<void>(in), static_cast<void>(out);
  }
  // What that output is the sum of, where there is a shared expert. [T, H]
  virtual void moe_parts(int layer, MatrixView<const float> routed,
                         MatrixView<const float> shared) {
    static_cast<void>(layer), static_cast<void>(routed), static_cast<void>(shared);
  }
  // The Mamba2 block of a layer, likewise. [T, H]
  virtual void mamba(int layer, MatrixView<const float> in, MatrixView<const float> out) {
    static_cast<void>(layer), static_cast<void>(in), static_cast<void>(out);
  }
};

struct StepBatch {
  std::span<const int32_t> token_ids;  // [T] all chunks' tokens
  std::span<const SequenceChunk> chunks;
  // Rows of which logits are wanted, in the order of the output.
  std::span<const int32_t> logit_rows;
  ForwardTrace* trace = nullptr;
  // [dp] tokens of each data-parallel rank in this step, the same on all; not looked at where there
  // is one.
  std::span<const int64_t> tokens_of_group = {};
};

struct ModelOptions {
  Compute compute = Compute::kBf16;  // --dtype
  Isa isa = Isa::kRef;
  const KernelTable* kernels = nullptr;  // in place of what `isa` means on this CPU: for tests
  MoeOptions moe;
  RankContext ranks = {};
  int64_t max_batch_tokens = 0;  // T of the largest step: workspaces are sized for it
  int64_t max_logit_rows = 0;
  int64_t max_model_len = 0;
  // Look at all block scales and FP8 codes before load_model() returns. Else those of each expert
  // before its first use, and those of all experts in the background.
  bool verify_weights = false;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const KvSpec& kv_spec() const = 0;  // of this rank, and so are all bytes
  // Bytes of weights that one decoded token reads (active experts, attention, lm_head): for GB/s
  // figures.
  virtual int64_t bytes_per_token() const = 0;
  virtual int64_t mapped_bytes() const = 0;
  virtual int64_t copied_bytes() const = 0;
  virtual int64_t workspace_bytes() const = 0;
  // One line for each kind of layer: chosen experts backend and prepare/finalize, with refusals
  // (R9).
  virtual std::vector<std::string> choices() const = 0;
  // Tokens that each expert of each MoE layer served so far: [MoE layers][experts].
  virtual std::vector<std::vector<int64_t>> expert_token_counts() const = 0;
  // In the order of the layers: where experts lie, and how much they had to do.
  virtual std::vector<MoeLayer*> mixtures() = 0;
  // Does not allocate. Fails only for a batch that breaks the contract, weights found damaged, or
  // with its communicators. With other ranks: all of them call it at once, those of one
  // tensor-parallel group with the same batch, and a batch may be empty; all ranks of a group get
  // all logits, the same bits.
  virtual Status forward(const StepBatch& batch, KvCache& cache, MatrixView<float> logits) = 0;
};

// The checkpoint, the team and the communicators outlive the model.
Result<std::unique_ptr<Model>> load_model(const ModelConfig& config, const Checkpoint& checkpoint,
                                          const ModelOptions& options, ThreadTeam& team);

// workspace_bytes() of the model that this would load, without its weights.
Result<int64_t> plan_workspace(const ModelConfig& config, const ModelOptions& options,
                               ThreadTeam& team);

}  // namespace rota
