#include "model/cut_weights.h"

#include <array>

#include "kernels/weight_matrix.h"

namespace rota {
namespace {

ShardRange times(const ShardRange& range, int64_t size) {
  return {.begin = range.begin * size, .end = range.end * size};
}

ShardRange behind(int64_t offset, const ShardRange& range) {
  return {.begin = offset + range.begin, .end = offset + range.end};
}

WeightMatrix rows_of(const WeightMatrix& matrix, const ShardRange& rows) {
  return column_slice(matrix, rows.begin, rows.size());
}

// A share of the sum over all inputs, into which the bias enters once.
WeightMatrix inputs_of(const WeightMatrix& matrix, const ShardRange& inputs, int rank) {
  WeightMatrix slice = input_slice(matrix, inputs.begin, inputs.size());
  if (rank > 0) slice.bias = nullptr;
  return slice;
}

std::vector<float> elements_of(const std::vector<float>& all, const ShardRange& range) {
  return {all.begin() + range.begin, all.begin() + range.end};
}

class Cutter {
 public:
  Cutter(const ModelConfig& config, const TensorShard& shard) : config_(config), shard_(shard) {}

  void operator()(AttentionWeights& weights) const {
    const ShardRange queries = times(shard_.query_heads, config_.head_dim);
    const ShardRange keys = times(shard_.kv_heads, config_.head_dim);
    weights.q = rows_of(weights.q, queries);
    weights.k = rows_of(weights.k, keys);
    weights.v = rows_of(weights.v, keys);
    weights.o = inputs_of(weights.o, queries, shard_.rank);
    if (!weights.sinks.empty()) weights.sinks = elements_of(weights.sinks, shard_.query_heads);
  }

  void operator()(Mamba2Weights& weights) const {
    const MambaConfig& m = config_.mamba;
    const ShardRange inner = times(shard_.mamba_heads, m.head_dim);
    const ShardRange states = times(shard_.mamba_groups, m.state);
    const WeightMatrix whole = weights.in_proj.front();
    // z | x B C | dt
    weights.in_proj = {rows_of(whole, inner)};
    for (const ShardRange& channels : conv_channels(inner, states)) {
      weights.in_proj.push_back(rows_of(whole, behind(m.inner(), channels)));
    }
    weights.in_proj.push_back(
        rows_of(whole, behind(m.inner() + m.conv_width(), shard_.mamba_heads)));
    weights.out_proj = inputs_of(weights.out_proj, inner, shard_.rank);
    weights.conv_weight = channels_of(weights.conv_weight, m.conv_kernel, inner, states);
    weights.conv_bias = channels_of(weights.conv_bias, 1, inner, states);
    for (std::vector<float>* vector : {&weights.a, &weights.d, &weights.dt_bias}) {
      *vector = elements_of(*vector, shard_.mamba_heads);
    }
    weights.norm += inner.begin;
  }

  // Routed experts are cut as their width plan says.
  void operator()(const MoeTensorNames&) const {}

 private:
  // This rank's of x, B and C, among the channels of the convolution.
  std::array<ShardRange, 3> conv_channels(const ShardRange& inner, const ShardRange& states) const {
    const MambaConfig& m = config_.mamba;
    return {inner, behind(m.inner(), states), behind(m.inner() + m.groups * m.state, states)};
  }

  // all [rows, conv_width]
  std::vector<float> channels_of(const std::vector<float>& all, int64_t rows,
                                 const ShardRange& inner, const ShardRange& states) const {
    std::vector<float> out;
    for (int64_t row = 0; row < rows; ++row) {
      for (const ShardRange& channels : conv_channels(inner, states)) {
        const ShardRange here = behind(row * config_.mamba.conv_width(), channels);
        out.insert(out.end(), all.begin() + here.begin, all.begin() + here.end);
      }
    }
    return out;
  }

  const ModelConfig& config_;
  const TensorShard& shard_;
};

}  // namespace

void cut_weights(DecoderWeights& weights, const ModelConfig& config, const TensorShard& shard) {
  const Cutter cutter(config, shard);
  for (BlockWeights& block : weights.blocks) std::visit(cutter, block.mixer);
  weights.lm_head = rows_of(weights.lm_head, shard.vocabulary);
}

}  // namespace rota
