// What every token of a mixture layer passes, whichever experts it chose: the shared expert,
// down(max(up x, 0)^2), which sees the full unmodified input (R7), and the projections into and out
// of the latent width, in which the routed experts of some models work.
//
// A rank of a tensor-parallel group has a part of the shared expert's inside, rows of up and
// columns of down: what comes out is its share of a sum over the group. The projections are on
// every rank.
//
//   MatrixView<const float> latent = dense.into_latent(layer.dense(), hidden);
//   dense.run_shared(layer.dense(), hidden, communicator);
//   ROTA_ASSIGN_OR_RETURN(Reduced<float> shared, group.reduce(dense.shared_share(tokens)));
// Rows are independent, bit for bit. Views are valid until the same function's next call.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/linear.h"
#include "checkpoint/model_config.h"
#include "comm/communicator.h"
#include "comm/partial.h"
#include "kernels/execution.h"
#include "moe/config.h"
#include "moe/width_plan.h"
#include "tensor/matrix.h"

namespace rota {

struct DenseSource {
  const Checkpoint* checkpoint = nullptr;
  const MoeTensorNames* names = nullptr;
  const MoeConfig* config = nullptr;
  const QuantConfig* quant = nullptr;  // the format of each matrix; none: all are plain
  ShardRange shared_inside = {};       // of the shared expert: what is this rank's
};

struct DenseMatrices {
  struct Shared {
    WeightMatrix up;    // [S, H], S: this rank's part
    WeightMatrix down;  // [H, S]
  };
  struct Latent {
    WeightMatrix in;   // [L, H]
    WeightMatrix out;  // [H, L]
  };
  std::optional<Shared> shared;  // none where the part is empty, too
  std::optional<Latent> latent;

  // factors: outlives the matrices.
  static Result<DenseMatrices> load(const DenseSource& source, FactorStore& factors);
  Bytes bytes() const;  // all of which every token reads
};

class DenseStages {
 public:
  DenseStages() = default;
  // kernels, team: outlive it.
  static Result<DenseStages> make(const MoeConfig& config, const WidthPlan& plan,
                                  const KernelTable& kernels, Compute compute, ThreadTeam& team,
                                  int64_t max_tokens);

  // Between its matmuls it lets go on what `ranks` has on its way.
  void run_shared(const DenseMatrices& weights, MatrixView<const float> hidden,
                  Communicator& ranks);
  // What the last call made, to be reduced once. [tokens, H]
  Partial<float> shared_share(int64_t tokens) const;

  MatrixView<const float> into_latent(const DenseMatrices& weights, MatrixView<const float> hidden);
  // Where the experts' sum goes before it leaves the latent width. [T, L]
  MatrixView<float> latent_sum(int64_t tokens) const;
  void out_of_latent(const DenseMatrices& weights, MatrixView<const float> sum,
                     MatrixView<float> out);

  // into += what, rows shared out.
  void add(MatrixView<float> into, MatrixView<const float> what) const;

  int64_t workspace_bytes() const;

 private:
  void multiply(const WeightMatrix& weights, MatrixView<const float> x, MatrixView<float> out);

  std::optional<Execution> exec_;
  Buffer prepared_;       // a matmul's input
  Extent hidden_{1};      // H
  Matrix<float> shared_;  // [T, max(S, H)]: the shared expert's inside, then what it makes of it
  Matrix<float> latent_;  // [T, L]
  Matrix<float> latent_sum_;  // [T, L]
};

}  // namespace rota
