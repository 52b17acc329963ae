// The loop that all families share: embedding, then for each block
//   x += mixer(norm(x))
// where a mixer is attention, a mixture of experts or Mamba2 (most families' layers are two blocks:
// attention, then a mixture), and for the rows whose logits are wanted the final norm and lm_head.
// The residual stream x is float32 and as wide as the model's hidden size; what a backend pads is
// inside the MoE runner.
//
// All memory of a step is taken here, once. With other ranks the weights are this rank's part, and
// a step may have no token: it meets the others in the mixture layers all the same.
//
//   ROTA_ASSIGN_OR_RETURN(DecoderWeights weights, bind_decoder(config, checkpoint));
//   return Decoder::make({config, here, checkpoint, options, team}, std::move(weights));
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kernels/execution.h"
#include "kernels/linear.h"
#include "kernels/rope_table.h"
#include "model/attention.h"
#include "model/decoder_weights.h"
#include "model/mamba2.h"
#include "model/model.h"
#include "model/step.h"
#include "model/workspace.h"
#include "moe/scale_scan.h"

namespace rota {

// What load_model() was given.
struct LoadContext {
  const ModelConfig& config;
  const ModelConfig& here;  // as this rank holds it
  const Checkpoint& checkpoint;
  const ModelOptions& options;
  ThreadTeam& team;
};

class Decoder : public Model {
 public:
  static Result<std::unique_ptr<Model>> make(const LoadContext& context, DecoderWeights weights);

  const ModelConfig& config() const override { return config_; }
  const KvSpec& kv_spec() const override { return kv_spec_; }
  int64_t bytes_per_token() const override { return sizes_.bytes_per_token; }
  int64_t mapped_bytes() const override { return sizes_.mapped_bytes; }
  int64_t copied_bytes() const override { return sizes_.copied_bytes; }
  int64_t workspace_bytes() const override { return sizes_.workspace_bytes; }
  std::vector<std::string> choices() const override { return {describe(moe_plan_)}; }
  std::vector<std::vector<int64_t>> expert_token_counts() const override;
  std::vector<MoeLayer*> mixtures() override;
  Status forward(const StepBatch& batch, KvCache& cache, MatrixView<float> logits) override;

 private:
  struct Block {
    int layer = 0;
    bool ends_layer = true;
    const Bf16* norm = nullptr;
    std::variant<AttentionBlock, Mamba2Block, MoeLayer> mixer;
  };

  // What the blocks of a step are given.
  struct Step {
    int64_t tokens = 0;
    AttentionStep attention;
    Mamba2Step mamba;
    ForwardTrace* trace = nullptr;
  };

  struct Sizes {
    int64_t bytes_per_token = 0;
    int64_t mapped_bytes = 0;
    int64_t copied_bytes = 0;
    int64_t workspace_bytes = 0;
  };

  Decoder(const LoadContext& context, const KernelTable& kernels, MoePlan plan, Execution exec);

  // Parts of make(), in order.
  Status load_blocks(const LoadContext& context, DecoderWeights weights);
  Status allocate_workspace(const LoadContext& context);
  void count_sizes(const Checkpoint& checkpoint);
  void scan_scales();

  // Parts of forward(), in order.
  void embed(std::span<const int32_t> token_ids);
  Step begin_step(const StepBatch& batch, KvCache& cache);
  void fill_angles(AttentionStep& step);
  Status run_block(const Block& block, const Step& step);
  Status run_moe(int layer, const MoeLayer& moe, const Step& step);
  Status write_logits(const StepBatch& batch, MatrixView<float> logits);
  Status run_lm_head(MatrixView<const float> selected, MatrixView<float> logits);

  std::vector<const MoeLayer*> moe_layers() const;
  void norm(MatrixView<const float> x, const Bf16* weight, MatrixView<float> out);

  ModelConfig config_;
  ModelOptions options_;
  KvSpec kv_spec_;
  MoePlan moe_plan_;
  Execution exec_;
  std::optional<RopeTable> rope_;  // none: the model does not rotate
  FactorStore factors_;
  WeightMatrix embedding_;
  std::vector<Block> blocks_;
  const Bf16* final_norm_ = nullptr;
  std::optional<Linear> lm_head_;
  StepLayout layout_;
  Workspace workspace_;
  Sizes sizes_;
  std::optional<ScaleScan> scan_;  // reads the blocks: the first to end
};

}  // namespace rota
