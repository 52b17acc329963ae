// What the checkpoint says of one mixture layer. Pure data; all widths here are logical.
//
//   const MoeConfig moe = moe_config(model_config);
//   const MoeTensorNames names = moe_tensor_names(model_config.architecture, layer);
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/model_config.h"
#include "kernels/matmul.h"

namespace rota {

// How logits become chosen experts and weights; see routing.h.
enum class RouterKind { kTopkSoftmax, kSoftmaxTopk, kSigmoidBiasGroups };
std::string_view to_string(RouterKind kind);

struct RouterConfig {
  RouterKind kind = RouterKind::kSoftmaxTopk;
  int64_t experts = 0;
  int64_t top_k = 0;
  bool renormalise = true;   // the chosen weights sum to 1 (before the factor)
  float scaling_factor = 1;  // multiplies the weights, here and nowhere else
  int64_t groups = 1;        // kSigmoidBiasGroups: experts [g * E/groups, (g+1) * E/groups)
  int64_t groups_kept = 1;   // are chosen from only if their group is among the best
};

enum class ExpertActivation {
  kSwigluOai,  // (up + 1) * gate * sigmoid(alpha * gate), both clamped at limit
  kSiluMul,    // silu(gate) * up
  kRelu2       // max(up, 0)^2: not gated
};
std::string_view to_string(ExpertActivation activation);

struct MoeConfig {
  int64_t hidden = 0;
  int64_t intermediate = 0;         // of one expert
  int64_t latent = 0;               // experts work in this width; 0: in `hidden`
  int64_t shared_intermediate = 0;  // of the experts that serve every token; 0: there are none
  int64_t shared_block = 1;         // elements of it that only come together, in any layer
  RouterConfig router;
  bool router_bias = false;
  bool router_correction_bias = false;  // kSigmoidBiasGroups: added to the scores that choose
  ExpertActivation activation = ExpertActivation::kSiluMul;
  float swiglu_alpha = 1.702f;  // kSwigluOai
  float swiglu_limit = 7.0f;    // kSwigluOai
  // Gate and up are rows 2i and 2i + 1 of one matrix (kInOut: columns); else two matrices.
  bool interleaved = false;
  WeightFormat format = WeightFormat::kBf16;
  LinearFormat linear;  // the same, as the checkpoint says it of one expert's matrix
  WeightOrder order = WeightOrder::kOutIn;
  bool expert_bias = false;

  bool gated() const { return activation != ExpertActivation::kRelu2; }
  // The width that goes into the experts and comes out of them.
  int64_t experts_hidden() const { return latent > 0 ? latent : hidden; }
  // Elements of a row that only come together: codes that share a scale. 1: any.
  int64_t code_block() const;
  // The same, and what shares a factor, in either direction: where a matrix may be cut.
  int64_t shard_block() const;
};

MoeConfig moe_config(const ModelConfig& config);

// Where a checkpoint keeps a layer. Stacked: one tensor [E, ...] for all experts; in MXFP4 the
// names get "_blocks" and "_scales", biases "_bias". Else one linear layer for each expert
// (checkpoint/linear.h): "{}" in a name stands for its number.
struct MoeTensorNames {
  bool stacked = false;
  std::string gate_up;  // interleaved
  std::string gate;     // not interleaved
  std::string up;
  std::string down;
  std::string router_weight;
  std::string router_bias;
  std::string correction_bias;
  // Modules, without ".weight".
  std::string shared_up;
  std::string shared_down;
  std::string latent_in;
  std::string latent_out;
};

MoeTensorNames moe_tensor_names(Architecture architecture, int64_t layer);

}  // namespace rota
