#include "moe/dense.h"

#include <algorithm>
#include <array>

#include "kernels/linear.h"
#include "kernels/weight_matrix.h"

namespace rota {
namespace {

Result<Matrix<float>> rows_of(int64_t tokens, int64_t width) {
  return Matrix<float>::allocate(tokens, Extent(width));
}

int64_t bytes_of(const Matrix<float>& matrix) {
  return matrix.rows() * matrix.view().stride() * static_cast<int64_t>(sizeof(float));
}

// Of the widest input that the stages multiply, whatever the weights' format: for one compute type
// all formats but float32 take inputs of one size.
Bytes token_stride(std::span<const int64_t> inputs, const KernelTable& kernels, Compute compute) {
  Bytes bytes;
  for (const int64_t in : inputs) {
    if (in == 0) continue;
    WeightMatrix shape;
    shape.in = Extent(in);
    bytes = std::max(bytes, kernels.input_layout(shape, compute).token_stride);
  }
  return bytes;
}

}  // namespace

Result<DenseMatrices> DenseMatrices::load(const DenseSource& source, FactorStore& factors) {
  const MoeConfig& config = *source.config;
  const MoeTensorNames& names = *source.names;
  const auto load = [&](const std::string& module, int64_t out, int64_t in) {
    const LinearFormat format =
        source.quant == nullptr ? LinearFormat{} : source.quant->format_of(module);
    return load_linear(*source.checkpoint,
                       {.module = module, .format = format, .out = out, .in = in}, factors);
  };
  DenseMatrices dense;
  if (const ShardRange& here = source.shared_inside; here.size() > 0) {
    const int64_t inside = config.shared_intermediate;
    Shared& shared = dense.shared.emplace();
    ROTA_ASSIGN_OR_RETURN(shared.up, load(names.shared_up, inside, config.hidden));
    ROTA_ASSIGN_OR_RETURN(shared.down, load(names.shared_down, config.hidden, inside));
    shared.up = column_slice(shared.up, here.begin, here.size());
    shared.down = input_slice(shared.down, here.begin, here.size());
  }
  if (config.latent > 0) {
    Latent& latent = dense.latent.emplace();
    ROTA_ASSIGN_OR_RETURN(latent.in, load(names.latent_in, config.latent, config.hidden));
    ROTA_ASSIGN_OR_RETURN(latent.out, load(names.latent_out, config.hidden, config.latent));
  }
  return dense;
}

Bytes DenseMatrices::bytes() const {
  Bytes bytes;
  if (shared) bytes = bytes + weight_bytes(shared->up) + weight_bytes(shared->down);
  if (latent) bytes = bytes + weight_bytes(latent->in) + weight_bytes(latent->out);
  return bytes;
}

Result<DenseStages> DenseStages::make(const MoeConfig& config, const WidthPlan& plan,
                                      const KernelTable& kernels, Compute compute, ThreadTeam& team,
                                      int64_t max_tokens) {
  DenseStages stages;
  if (config.shared_intermediate == 0 && config.latent == 0) return stages;
  stages.hidden_ = Extent(config.hidden);
  const std::array<int64_t, 3> inputs = {config.hidden, plan.shared_inside.size(), config.latent};
  const int64_t widest = *std::max_element(inputs.begin(), inputs.end());
  ROTA_ASSIGN_OR_RETURN(stages.exec_, Execution::make(kernels, compute, team,
                                                      {.max_in = Extent(widest), .attention = {}}));
  const Bytes prepared = token_stride(inputs, kernels, compute) * max_tokens;
  ROTA_ASSIGN_OR_RETURN(stages.prepared_,
                        Buffer::allocate(static_cast<size_t>(prepared.count), Fill::kUnspecified));
  if (config.shared_intermediate > 0) {
    ROTA_ASSIGN_OR_RETURN(stages.shared_,
                          rows_of(max_tokens, std::max(plan.shared_inside.size(), config.hidden)));
  }
  if (config.latent > 0) {
    ROTA_ASSIGN_OR_RETURN(stages.latent_, rows_of(max_tokens, config.latent));
    ROTA_ASSIGN_OR_RETURN(stages.latent_sum_, rows_of(max_tokens, config.latent));
  }
  return stages;
}

void DenseStages::multiply(const WeightMatrix& weights, MatrixView<const float> x,
                           MatrixView<float> out) {
  const InputLayout layout = exec_->kernels().input_layout(weights, exec_->compute());
  run_linear(*exec_, weights, exec_->prepare(x, weights.in, layout, prepared_.data()), out);
}

void DenseStages::run_shared(const DenseMatrices& weights, MatrixView<const float> hidden,
                             Communicator& ranks) {
  const MatrixView<float> rows = shared_.rows_view(hidden.rows());
  if (!weights.shared) {  // of nothing: a share of zeros
    for (int64_t row = 0; row < rows.rows(); ++row) std::ranges::fill(rows.row(row), 0.0f);
    return;
  }
  const auto& [up, down] = *weights.shared;
  const MatrixView<float> inside = rows.column_range(0, up.out);
  multiply(up, hidden, inside);
  exec_->for_rows(inside.rows(), [&](int64_t first, int64_t count) {
    const MatrixView<float> block = inside.row_range(first, count);
    exec_->kernels().relu2(block, block);
  });
  ranks.progress();
  // Its input is prepared before its output takes the place.
  multiply(down, inside, rows.column_range(0, down.out));
  ranks.progress();
}

Partial<float> DenseStages::shared_share(int64_t tokens) const {
  return Partial<float>(shared_.rows_view(tokens).column_range(0, hidden_));
}

MatrixView<const float> DenseStages::into_latent(const DenseMatrices& weights,
                                                 MatrixView<const float> hidden) {
  const MatrixView<float> latent = latent_.rows_view(hidden.rows());
  multiply(weights.latent->in, hidden, latent);
  return latent;
}

MatrixView<float> DenseStages::latent_sum(int64_t tokens) const {
  return latent_sum_.rows_view(tokens);
}

void DenseStages::out_of_latent(const DenseMatrices& weights, MatrixView<const float> sum,
                                MatrixView<float> out) {
  multiply(weights.latent->out, sum, out);
}

void DenseStages::add(MatrixView<float> into, MatrixView<const float> what) const {
  exec_->for_rows(into.rows(), [&](int64_t first, int64_t count) {
    exec_->kernels().add(into.row_range(first, count), what.row_range(first, count));
  });
}

int64_t DenseStages::workspace_bytes() const {
  if (!exec_) return 0;
  int64_t bytes = exec_->scratch_bytes() + static_cast<int64_t>(prepared_.size());
  for (const Matrix<float>* matrix : {&shared_, &latent_, &latent_sum_}) {
    if (matrix->rows() > 0) bytes += bytes_of(*matrix);
  }
  return bytes;
}

}  // namespace rota
