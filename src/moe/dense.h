// What every token of a mixture layer passes, whichever experts it chose: the shared expert,
// down(max(up x, 0)^2), which sees the full unmodified input (R7), and the projections into and out
// of the latent width, in which the routed experts of some models work.
//
//   MatrixView<const float> latent = dense.into_latent(layer.dense(), hidden);
//   MatrixView<const float> shared = dense.shared(layer.dense(), hidden, communicator);
// Rows are independent, bit for bit. Views are valid until the same function's next call.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/linear.h"
#include "checkpoint/model_config.h"
#include "comm/communicator.h"
#include "kernels/execution.h"
#include "moe/config.h"
#include "tensor/matrix.h"

namespace rota {

struct DenseSource {
  const Checkpoint* checkpoint = nullptr;
  const MoeTensorNames* names = nullptr;
  const MoeConfig* config = nullptr;
  const QuantConfig* quant = nullptr;  // the format of each matrix; none: all are plain
};

struct DenseMatrices {
  struct Shared {
    WeightMatrix up;    // [S, H]
    WeightMatrix down;  // [H, S]
  };
  struct Latent {
    WeightMatrix in;   // [L, H]
    WeightMatrix out;  // [H, L]
  };
  std::optional<Shared> shared;
  std::optional<Latent> latent;

  // factors: outlives the matrices.
  static Result<DenseMatrices> load(const DenseSource& source, FactorStore& factors);
  Bytes bytes() const;  // all of which every token reads
};

class DenseStages {
 public:
  DenseStages() = default;
  // kernels, team: outlive it.
  static Result<DenseStages> make(const MoeConfig& config, const KernelTable& kernels,
                                  Compute compute, ThreadTeam& team, int64_t max_tokens);

  // Between its matmuls it lets go on what `ranks` has on its way.
  MatrixView<const float> shared(const DenseMatrices& weights, MatrixView<const float> hidden,
                                 Communicator& ranks);
  // The same again, of the last call.
  MatrixView<const float> shared_rows(int64_t tokens) const;

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
  Buffer prepared_;           // a matmul's input
  Extent hidden_{1};          // H
  Matrix<float> shared_;      // [T, max(S, H)]: the shared expert's inside, then its output
  Matrix<float> latent_;      // [T, L]
  Matrix<float> latent_sum_;  // [T, L]
};

}  // namespace rota
