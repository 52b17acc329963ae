// The weights of one mixture layer: views into the checkpoint's own bytes, or padded copies where
// the plan says so (R5): a logical region is copied into a padded one, gate and up apart, padded
// elements are zero (codes: 0 under scales of 1) and so are padded biases.
//
// A tensor-parallel rank reads its part of the intermediate width, in whole quantisation blocks:
// rows of gate and up (interleaved: pairs), columns of down; the first shard alone has down's bias.
// An expert-parallel rank reads its own experts. No other bytes of the experts are touched.
//
//   ROTA_ASSIGN_OR_RETURN(MoeLayer layer, MoeLayer::load(checkpoint, names, source));
//   kernels.matmul({.weights = &layer.expert(local).down, ...});
// The checkpoint must outlive the layer. Block scales and FP8 codes of which no number can be made are
// found before an expert is used for the first time: verify().
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/linear.h"
#include "kernels/matmul.h"
#include "kernels/weight_matrix.h"
#include "moe/config.h"
#include "moe/dense.h"
#include "moe/expert_map.h"
#include "moe/router_weights.h"
#include "moe/width_plan.h"
#include "platform/memory.h"
#include "platform/thread_team.h"

namespace rota {

enum class MatrixRole { kGate, kUp, kDown };

struct ExpertMatrices {
  // Interleaved: `gate` holds gate and up, [2I, H], and `up` is unused. Not gated: only `up`.
  WeightMatrix gate;
  WeightMatrix up;
  WeightMatrix down;  // [H, I]
};

// What a layer's experts cost: `mapped` bytes are read in the file where they lie, `copied` ones
// are in memory of our own.
struct ExpertBytes {
  Bytes mapped;
  Bytes copied;
};

// Pure: what MoeLayer::load() will need for `experts` experts. `rota plan` prints it.
ExpertBytes expert_bytes(const MoeConfig& config, const WidthPlan& plan, int64_t experts);

struct MoeLayerSource {
  const MoeConfig* config = nullptr;
  const WidthPlan* plan = nullptr;
  ExpertMap map = ExpertMap::whole(1);
  Compute compute = Compute::kBf16;    // decides which MXFP4 scales are too large
  const QuantConfig* quant = nullptr;  // the formats of what is not a routed expert; none: plain
};

class MoeLayer {
 public:
  static Result<MoeLayer> load(const Checkpoint& checkpoint, const MoeTensorNames& names,
                               const MoeLayerSource& source);
  MoeLayer(MoeLayer&&) noexcept;
  MoeLayer& operator=(MoeLayer&&) noexcept;
  ~MoeLayer();

  const WeightMatrix& router() const { return router_.matrix; }                       // [E, H]
  std::span<const float> correction_bias() const { return router_.correction_bias; }  // [E] or none
  Bytes router_bytes() const { return router_.bytes; }
  const DenseMatrices& dense() const { return dense_; }
  const ExpertMap& map() const { return map_; }  // of an empty shard: no expert is here
  const ExpertMatrices& expert(int64_t local) const { return experts_[size_t(local)]; }
  ExpertBytes bytes() const { return bytes_; }
  Bytes bytes_of_one_expert() const;  // as read by a token that chose it

  // Checks block scales and FP8 codes of the given local experts, as far as they are this rank's, each
  // once and for all. kDataLoss names file, tensor and place. Allocates only if it fails.
  Status verify(std::span<const int32_t> locals, ThreadTeam& team) const;
  Status verify_all(ThreadTeam& team) const;
  // The same for one expert, by any thread, also while another verifies.
  Status verify_one(int32_t local) const;
  bool has_checks() const;  // BF16 has none

  // Tokens that each global expert served so far; written by the stepping thread.
  std::span<int64_t> served() const;

 private:
  struct Checks;
  struct RoleSource {
    const MoeTensorNames* names = nullptr;
    const MoeConfig* config = nullptr;
    const WidthPlan* plan = nullptr;
    MatrixRole role = MatrixRole::kDown;
  };
  MoeLayer();
  Status add_role(const Checkpoint& checkpoint, const RoleSource& source);
  // Of an expert that has tensors of its own: what verify() will look at.
  void add_check(const Checkpoint& checkpoint, const RoleSource& source, int64_t local);

  RouterWeights router_;
  DenseMatrices dense_;
  ExpertMap map_ = ExpertMap::whole(1);
  std::vector<ExpertMatrices> experts_;
  std::vector<Buffer> copies_;
  FactorStore factors_;
  ExpertBytes bytes_;
  std::unique_ptr<Checks> checks_;
};

}  // namespace rota
