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
// The checkpoint must outlive the layer. Block scales and FP8 codes of which no number can be made
// are found before an expert is used for the first time: verify().
//
// Experts that may be moved lie in slots (expert_slots.h): place() reads those that came to this
// rank from the checkpoint, and lets go of those that left.
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
#include "moe/expert_slots.h"
#include "moe/router_weights.h"
#include "moe/routing.h"
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

// config and plan outlive a layer whose experts may be moved.
struct MoeLayerSource {
  const MoeConfig* config = nullptr;
  const WidthPlan* plan = nullptr;
  ExpertMap map = ExpertMap::whole(1);    // of the slots, where there are some
  std::optional<ExpertSlots> slots = {};  // none: experts stay where the map has them
  Compute compute = Compute::kBf16;       // decides which MXFP4 scales are too large
  const QuantConfig* quant = nullptr;     // the formats of what is not a routed expert; none: plain
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
  const ExpertMatrices& expert(int64_t local) const { return held_[size_t(local)].matrices; }
  ExpertBytes bytes() const { return bytes_; }
  Bytes bytes_of_one_expert() const;  // as read by a token that chose it

  // Checks block scales and FP8 codes of the given local experts, as far as they are this rank's,
  // each once and for all. kDataLoss names file, tensor and place. Allocates only if it fails.
  Status verify(std::span<const int32_t> locals, ThreadTeam& team) const;
  Status verify_all(ThreadTeam& team) const;
  // The same for one expert, by any thread, also while another verifies.
  Status verify_one(int32_t local) const;
  bool has_checks() const;  // BF16 has none

  // Where experts may be moved: who lies in which slot of the map.
  const std::optional<ExpertSlots>& slots() const { return slots_; }
  // From now on they lie so. The same on all ranks, between two steps; verifies what came. Whatever
  // it returns, what it has not reached lies as before.
  Status place(const ExpertSlots& slots, ThreadTeam& team);
  // The slots that a rank's tokens are sent to, where there are slots; else their experts. ids
  // [topk's], which the result refers to. The copies of an expert take turns.
  TopK choose_slots(const TopK& topk, int rank, std::span<int32_t> ids) const;

  // Written by the stepping thread: tokens of this rank that each global expert served so far, and
  // tokens of all ranks that its local ones served.
  std::span<int64_t> served() const;
  std::span<int64_t> served_here() const;
  // The latter, of global experts, also of those that have left.
  std::vector<int64_t> all_served_here() const;
  void reset_served();

 private:
  struct Checks;
  struct Origin;
  // A local expert, and all of it that is in memory of our own.
  struct Held {
    ExpertMatrices matrices;
    std::vector<Buffer> copies;
    FactorStore factors;
  };
  MoeLayer();
  int64_t global_of(int64_t local) const {
    const int64_t at = map_.global(local);
    return slots_ ? slots_->expert(at) : at;
  }
  Status hold(int64_t local);
  Result<WeightMatrix> load_matrix(MatrixRole role, int64_t expert, Held& held) const;
  // Of an expert that has tensors of its own: what verify() will look at.
  void add_check(MatrixRole role, int64_t local);

  RouterWeights router_;
  DenseMatrices dense_;
  ExpertMap map_ = ExpertMap::whole(1);
  std::optional<ExpertSlots> slots_;
  std::vector<Held> held_;  // [local experts]
  FactorStore factors_;     // of the dense matrices
  ExpertBytes bytes_;
  std::unique_ptr<Checks> checks_;
  std::unique_ptr<Origin> origin_;
};

}  // namespace rota
