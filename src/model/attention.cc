#include "model/attention.h"

#include <cmath>

#include "model/add_projection.h"

namespace rota {

Result<AttentionWorkspace> AttentionWorkspace::allocate(const ModelConfig& config,
                                                        int64_t max_tokens,
                                                        Bytes prepared_per_token) {
  const int64_t queries = config.heads * config.head_dim;
  const int64_t keys = config.kv_heads * config.head_dim;
  AttentionWorkspace workspace;
  ROTA_ASSIGN_OR_RETURN(
      workspace.qkv,
      Matrix<float>::allocate(max_tokens, Extent(std::max(queries + 2 * keys, config.hidden))));
  ROTA_ASSIGN_OR_RETURN(workspace.attended, Matrix<float>::allocate(max_tokens, Extent(queries)));
  const Bytes prepared = prepared_per_token * max_tokens;
  ROTA_ASSIGN_OR_RETURN(workspace.prepared,
                        Buffer::allocate(static_cast<size_t>(prepared.count), Fill::kUnspecified));
  return workspace;
}

Result<AttentionBlock> AttentionBlock::make(AttentionWeights weights, const Geometry& geometry,
                                            const Execution& exec) {
  ROTA_ASSIGN_OR_RETURN(Linear qkv, Linear::make({weights.q, weights.k, weights.v}, exec));
  ROTA_ASSIGN_OR_RETURN(Linear o, Linear::make({weights.o}, exec));
  return AttentionBlock(std::move(qkv), std::move(o), std::move(weights), geometry);
}

Bytes AttentionBlock::prepared_per_token() const {
  return std::max(qkv_.layout().token_stride, o_.layout().token_stride);
}

Bytes AttentionBlock::weight_bytes() const {
  const auto sinks = static_cast<int64_t>(sinks_.size());
  const int64_t norms = q_norm_ == nullptr ? 0 : 2 * geometry_.kv.head_dim;
  return qkv_.weight_bytes() + o_.weight_bytes() + size_of(DType::kBf16) * (sinks + norms);
}

KvPages AttentionBlock::pages(const AttentionStep& step, const QueryTile& tile) const {
  const SequenceChunk& chunk = step.chunks[static_cast<size_t>(tile.chunk)];
  return step.cache->layer_pages(geometry_.place,
                                 chunk.block_tables[static_cast<size_t>(geometry_.place.group)]);
}

void AttentionBlock::norm_heads(const AttentionStep& step, const QueryTile& tile) const {
  if (q_norm_ == nullptr) return;
  const MatrixView<float> qkv = step.workspace->qkv.view();
  const int64_t dim = geometry_.kv.head_dim;
  const int64_t first = step.chunks[static_cast<size_t>(tile.chunk)].first_row;
  for (int64_t row = first + tile.begin; row < first + tile.end; ++row) {
    float* queries = qkv.data() + row * qkv.stride();
    float* keys = queries + geometry_.heads * dim;
    const auto norm = [&](float* heads, int64_t count, const Bf16* weight) {
      const MatrixView<float> x(heads, count, Extent(dim), dim);
      step.exec->kernels().rms_norm(
          {.x = x, .weight = weight, .eps = geometry_.norm_eps, .out = x});
    };
    norm(queries, geometry_.heads, q_norm_);
    norm(keys, geometry_.kv.kv_heads, k_norm_);
  }
}

void AttentionBlock::rotate_and_store(const AttentionStep& step, const QueryTile& tile) const {
  const SequenceChunk& chunk = step.chunks[static_cast<size_t>(tile.chunk)];
  const KernelTable& kernels = step.exec->kernels();
  const int64_t row = chunk.first_row + tile.begin;
  const int64_t stride = step.workspace->qkv.view().stride();
  const int64_t tokens = tile.end - tile.begin;
  const int64_t dim = geometry_.kv.head_dim;
  float* queries = step.workspace->qkv.view().data() + row * stride;
  float* keys = queries + geometry_.heads * dim;
  if (step.cos != nullptr) {
    // Keys follow queries in a row: one call turns both.
    kernels.rotate({.x = queries,
                    .stride = stride,
                    .tokens = tokens,
                    .heads = geometry_.heads + geometry_.kv.kv_heads,
                    .head_dim = dim,
                    .cos = step.cos + row * (dim / 2),
                    .sin = step.sin + row * (dim / 2)});
  }
  kernels.store_kv({.shape = geometry_.kv,
                    .pages = pages(step, tile),
                    .first_position = chunk.first_position + tile.begin,
                    .tokens = tokens,
                    .keys = keys,
                    .values = keys + geometry_.kv.kv_heads * dim,
                    .stride = stride});
}

void AttentionBlock::attend(const AttentionStep& step, const QueryTile& tile, int64_t kv_head,
                            int member) const {
  const SequenceChunk& chunk = step.chunks[static_cast<size_t>(tile.chunk)];
  const MatrixView<float> qkv = step.workspace->qkv.view();
  const MatrixView<float> attended = step.workspace->attended.view();
  step.exec->kernels().attend(
      {.shape = geometry_.kv,
       .pages = pages(step, tile),
       .query_heads = geometry_.heads,
       .first_position = chunk.first_position,
       .tokens = chunk.tokens,
       .queries = qkv.data() + chunk.first_row * qkv.stride(),
       .query_stride = qkv.stride(),
       .out = attended.data() + chunk.first_row * attended.stride(),
       .out_stride = attended.stride(),
       .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(geometry_.kv.head_dim))),
       .window = geometry_.window,
       .sinks = sinks_.empty() ? nullptr : sinks_.data(),
       .kv_head = kv_head,
       .token_begin = tile.begin,
       .token_end = tile.end,
       .scratch = step.exec->scratch(member)});
}

Status AttentionBlock::run(const AttentionStep& step, MatrixView<const float> in,
                           MatrixView<float> residual) const {
  const Execution& exec = *step.exec;
  AttentionWorkspace& workspace = *step.workspace;
  const int64_t tokens = in.rows();
  const auto tiles = step.layout->tiles();
  const auto tile_count = static_cast<int64_t>(tiles.size());

  PreparedInput input = exec.prepare(in, qkv_.in(), qkv_.layout(), workspace.prepared.data());
  qkv_.run(exec, input, workspace.qkv.rows_view(tokens));

  exec.for_items(tile_count, [&](int64_t item, int) {
    norm_heads(step, tiles[static_cast<size_t>(item)]);
    rotate_and_store(step, tiles[static_cast<size_t>(item)]);
  });
  // The last tiles of a chunk see the most keys: they go first.
  const int64_t kv_heads = geometry_.kv.kv_heads;
  exec.for_items(tile_count * kv_heads, [&](int64_t item, int member) {
    const int64_t tile = tile_count - 1 - item / kv_heads;
    attend(step, tiles[static_cast<size_t>(tile)], item % kv_heads, member);
  });

  const MatrixView<float> attended = workspace.attended.rows_view(tokens);
  input = exec.prepare(attended, o_.in(), o_.layout(), workspace.prepared.data());
  // q, k and v have been used: their place takes the projection until it is added.
  const MatrixView<float> projected =
      workspace.qkv.rows_view(tokens).column_range(0, Extent(o_.columns()));
  return add_projection(exec, o_, input, projected, residual, *step.tensor);
}

}  // namespace rota
