// config.json as the engine understands it, validated: every size is in a sane range, every enum is
// one that the engine implements, everything else is an error that names field, found and expected.
//
// Newer spellings are read beside the older ones: rope_parameters (rope_scaling, rope_theta), dtype
// (torch_dtype), num_experts_per_tok (experts_per_token).
//
//   ROTA_ASSIGN_OR_RETURN(ModelConfig config, read_model_config(dir, {.hf_overrides =
//   R"({"vocab_size": 64})"}));
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/linear_format.h"
#include "tensor/dtype.h"

namespace rota {

enum class Architecture { kGptOss, kMixtral, kQwen3Moe, kNemotronH };
std::string_view to_string(Architecture architecture);  // model_type: "gpt_oss"

enum class RopeType { kNone, kDefault, kYarn };

// Rotary embedding, half-split (neox) rotation over the whole head.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000;
  // YaRN only:
  double factor = 1;
  int64_t original_max_position = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;  // round the correction range to whole dimensions
  double attention_factor =
      1;  // multiplies cos and sin; resolved from attention_factor, mscale, factor
};

enum class AttentionKind { kFull, kSliding, kNone };

// What a layer consists of: one or two mixers, each x += mixer(norm(x)).
enum class LayerKind { kAttentionThenMoe, kMamba, kMoe, kAttention };

// A Mamba2 layer. The rows of its input projection are z, then x, B and C, which pass through the
// convolution, then one step size for each head.
struct MambaConfig {
  int64_t heads = 0;  // 0: no layer is a Mamba layer
  int64_t head_dim = 0;
  int64_t groups = 0;  // of heads that share B and C
  int64_t state = 0;   // of each element of a head
  int64_t conv_kernel = 0;

  int64_t inner() const { return heads * head_dim; }
  int64_t conv_width() const { return inner() + 2 * groups * state; }
  int64_t projected() const { return inner() + conv_width() + heads; }
};

enum class Activation {
  kSilu,           // silu(gate) * up
  kClampedSwiglu,  // gpt-oss: gate and up clamped at swiglu_limit, (up + 1) * gate * sigmoid(1.702
                   // gate)
  kRelu2,          // max(up, 0)^2: not gated
};

enum class QuantMethod { kNone, kMxfp4, kFp8, kCompressedTensors, kModelOpt };
std::string_view to_string(QuantMethod method);

struct QuantConfig {
  QuantMethod method = QuantMethod::kNone;
  LinearFormat linear;                              // of every linear layer but those:
  std::vector<std::string> modules_to_not_convert;  // patterns
  // Where the file names each quantised layer; all others are plain then.
  std::map<std::string, LinearFormat, std::less<>> by_module;

  LinearFormat format_of(std::string_view module) const;
};

struct ModelConfig {
  Architecture architecture = Architecture::kGptOss;
  DType dtype = DType::kBf16;  // of what is not quantised

  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t vocab = 0;
  int64_t max_position = 0;
  double rms_eps = 1e-5;
  bool tie_word_embeddings = false;

  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  bool attention_bias = false;           // q, k, v and o
  bool attention_sinks = false;          // one extra logit a head
  bool qk_norm = false;                  // each head of q and k is normed before rope
  int64_t sliding_window = 0;            // 0: no layer slides
  std::vector<AttentionKind> attention;  // [layers]
  RopeConfig rope;

  std::vector<LayerKind> layer_kinds;  // [layers]
  MambaConfig mamba;

  int64_t experts = 0;
  int64_t top_k = 0;
  bool norm_topk_prob = true;  // the chosen weights sum to 1
  int64_t intermediate = 0;    // of one expert
  Activation activation = Activation::kSilu;
  double swiglu_limit = 0;   // kClampedSwiglu only
  bool expert_bias = false;  // gate_up and down
  bool router_bias = false;
  bool router_correction_bias = false;  // added to the scores that choose, not to the weights
  int64_t expert_groups = 1;            // experts are chosen from
  int64_t expert_groups_kept = 1;       // the best groups only
  double routed_scaling_factor = 1;     // part of the routing weights
  int64_t shared_intermediate = 0;      // of the expert that serves every token; 0: there is none
  int64_t latent = 0;                   // routed experts work in this width; 0: in `hidden`
  QuantConfig quant;
  LinearFormat expert_format;  // of the routed experts, resolved from `quant`

  std::vector<int32_t> eos_token_ids;  // may be empty: generation_config.json may name them
  std::optional<int32_t> bos_token_id;
  std::optional<int32_t> pad_token_id;

  bool has_attention(int64_t layer) const;
  bool has_moe(int64_t layer) const;
  bool has_mamba(int64_t layer) const;
  int64_t moe_layers() const;
  // The width that goes into the routed experts and comes out of them.
  int64_t experts_hidden() const { return latent > 0 ? latent : hidden; }
};

struct ConfigOptions {
  std::string hf_overrides;  // a JSON object merged over config.json; empty: nothing
};

// Reads config.json (and hf_quant_config.json, if it is there) of a model folder. An override of
// quantization_config wins over both files.
Result<ModelConfig> read_model_config(const std::string& model_dir,
                                      const ConfigOptions& options = {});

// source: what error messages call the document.
Result<ModelConfig> parse_model_config(const nlohmann::json& config, std::string_view source);

// Merges objects deeply: an object in `overrides` merges with an object, everything else replaces
// (null too: {"rope_scaling": null} makes rope plain).
Result<nlohmann::json> apply_overrides(nlohmann::json config, std::string_view overrides);

}  // namespace rota
