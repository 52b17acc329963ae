// The layer loop that gpt_oss and mixtral share: embedding, then for each layer
//   x += attention(norm(x));  x += moe(norm(x))
// and for the rows whose logits are wanted the final norm and lm_head. The residual stream x is
// float32 and as wide as the model's hidden size; what a backend pads is inside the MoE runner.
//
// All memory of a step is taken here, once.
//
//   ROTA_ASSIGN_OR_RETURN(DecoderWeights weights, bind_decoder(config, checkpoint));
//   return Decoder::make({config, checkpoint, options, team}, std::move(weights));
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/rope_table.h"
#include "model/attention.h"
#include "model/decoder_weights.h"
#include "kernels/execution.h"
#include "kernels/linear.h"
#include "model/model.h"
#include "model/step.h"
#include "moe/runner.h"
#include "moe/scale_scan.h"

namespace rota {

// What load_model() was given.
struct LoadContext {
  const ModelConfig& config;
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
  Status forward(const StepBatch& batch, KvCache& cache, MatrixView<float> logits) override;

 private:
  struct Layer {
    const Bf16* attention_norm = nullptr;
    AttentionBlock attention;
    const Bf16* moe_norm = nullptr;
    MoeLayer moe;
  };

  // Memory of a step of at most max_batch_tokens rows and max_logit_rows logits.
  struct Workspace {
    Matrix<float> residual;  // x [T, H]
    Matrix<float> normed;    // [T, H]: what a block reads
    Matrix<float> moe_out;   // [T, H]
    Matrix<float> selected;  // [logit rows, H]: final norm
    Buffer lm_head_input;    // of `selected`, prepared
    Matrix<float> cos;       // [1, T * head_dim / 2]
    Matrix<float> sin;
    AttentionWorkspace attention;
  };

  struct Sizes {
    int64_t bytes_per_token = 0;
    int64_t mapped_bytes = 0;
    int64_t copied_bytes = 0;
    int64_t workspace_bytes = 0;
  };

  Decoder(const LoadContext& context, const KernelTable& kernels, MoePlan plan, Execution exec);

  // Parts of make(), in order.
  Status load_layers(const LoadContext& context, DecoderWeights weights);
  Status allocate_workspace();
  void count_sizes(const Checkpoint& checkpoint);
  void scan_scales();

  // Parts of forward(), in order.
  void embed(std::span<const int32_t> token_ids);
  AttentionStep begin_step(const StepBatch& batch, KvCache& cache);
  Status run_layer(int64_t index, const AttentionStep& step, ForwardTrace* trace);
  void write_logits(const StepBatch& batch, MatrixView<float> logits);

  void norm(MatrixView<const float> x, const Bf16* weight, MatrixView<float> out);

  ModelConfig config_;
  ModelOptions options_;
  KvSpec kv_spec_;
  MoePlan moe_plan_;
  Execution exec_;
  std::optional<RopeTable> rope_;  // none: the model does not rotate
  FactorStore factors_;
  WeightMatrix embedding_;
  std::vector<Layer> layers_;
  std::optional<MoeRunner> moe_;
  const Bf16* final_norm_ = nullptr;
  std::optional<Linear> lm_head_;
  StepLayout layout_;
  Workspace workspace_;
  Sizes sizes_;
  std::optional<ScaleScan> scan_;  // reads the layers: the first to end
};

}  // namespace rota
