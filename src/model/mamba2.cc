#include "model/mamba2.h"

#include <algorithm>

#include "model/add_projection.h"

namespace rota {
namespace {

// Channels of one item of the convolution: whole cache lines, a few microseconds for one token.
constexpr int64_t kTileChannels = 512;

// Where the heads' states begin in a layer's state, in floats.
int64_t conv_state_floats(const MambaConfig& config) {
  return round_up((config.conv_kernel - 1) * config.conv_width(),
                  static_cast<int64_t>(kCacheLine / sizeof(float)));
}

int64_t head_state_floats(const MambaConfig& config) { return config.state * config.head_dim; }

float* state_of(const Mamba2Step& step, const SequenceChunk& chunk, int64_t index) {
  return reinterpret_cast<float*>(step.cache->state(chunk.state_slot, index).data());
}

int64_t bytes_of(const Matrix<float>& matrix) {
  return matrix.rows() * matrix.view().stride() * static_cast<int64_t>(sizeof(float));
}

}  // namespace

Bytes mamba2_state_bytes(const MambaConfig& config) {
  const int64_t floats = conv_state_floats(config) + config.heads * head_state_floats(config);
  return {round_up(floats * static_cast<int64_t>(sizeof(float)), static_cast<int64_t>(kCacheLine))};
}

Result<Mamba2Workspace> Mamba2Workspace::allocate(const ModelConfig& config, int64_t max_tokens,
                                                  Bytes prepared_per_token) {
  Mamba2Workspace workspace;
  const Extent projected(std::max(config.mamba.projected(), config.hidden));
  ROTA_ASSIGN_OR_RETURN(workspace.projected, Matrix<float>::allocate(max_tokens, projected));
  ROTA_ASSIGN_OR_RETURN(workspace.convolved,
                        Matrix<float>::allocate(max_tokens, Extent(config.mamba.conv_width())));
  const Bytes prepared = prepared_per_token * max_tokens;
  ROTA_ASSIGN_OR_RETURN(workspace.prepared,
                        Buffer::allocate(static_cast<size_t>(prepared.count), Fill::kUnspecified));
  return workspace;
}

int64_t Mamba2Workspace::bytes() const {
  return bytes_of(projected) + bytes_of(convolved) + static_cast<int64_t>(prepared.size());
}

Result<Mamba2Block> Mamba2Block::make(Mamba2Weights weights, const Geometry& geometry,
                                      const Execution& exec) {
  ROTA_ASSIGN_OR_RETURN(Linear in_proj, Linear::make(weights.in_proj, exec));
  ROTA_ASSIGN_OR_RETURN(Linear out_proj, Linear::make({weights.out_proj}, exec));
  return Mamba2Block(std::move(in_proj), std::move(out_proj), std::move(weights), geometry);
}

Bytes Mamba2Block::prepared_per_token() const {
  return std::max(in_proj_.layout().token_stride, out_proj_.layout().token_stride);
}

Bytes Mamba2Block::weight_bytes() const {
  const MambaConfig& m = geometry_.mamba;
  const int64_t vectors = (m.conv_kernel + 1) * m.conv_width() + m.inner() + 3 * m.heads;
  return in_proj_.weight_bytes() + out_proj_.weight_bytes() + size_of(DType::kBf16) * vectors;
}

float* Mamba2Block::conv_state(const Mamba2Step& step, const SequenceChunk& chunk) const {
  return state_of(step, chunk, geometry_.state_index);
}

float* Mamba2Block::head_state(const Mamba2Step& step, const SequenceChunk& chunk,
                               int64_t head) const {
  const MambaConfig& m = geometry_.mamba;
  return state_of(step, chunk, geometry_.state_index) + conv_state_floats(m) +
         head * head_state_floats(m);
}

void Mamba2Block::convolve(const Mamba2Step& step, const SequenceChunk& chunk,
                           int64_t first_channel, int64_t channels) const {
  const MambaConfig& m = geometry_.mamba;
  const Extent width(channels);
  const auto rows = [&](const Matrix<float>& matrix) {
    return matrix.view().row_range(chunk.first_row, chunk.tokens);
  };
  float* state = conv_state(step, chunk) + first_channel;
  if (chunk.first_position == 0) {
    for (int64_t j = 0; j < m.conv_kernel - 1; ++j) {
      std::fill_n(state + j * m.conv_width(), channels, 0.0f);
    }
  }
  step.exec->kernels().causal_conv(
      {.x = rows(step.workspace->projected).column_range(m.inner() + first_channel, width),
       .kernel = m.conv_kernel,
       .weight = weights_.conv_weight.data() + first_channel,
       .weight_stride = m.conv_width(),
       .bias = weights_.conv_bias.data() + first_channel,
       .state = state,
       .state_stride = m.conv_width(),
       .out = rows(step.workspace->convolved).column_range(first_channel, width)});
}

void Mamba2Block::scan(const Mamba2Step& step, const SequenceChunk& chunk, int64_t head) const {
  const MambaConfig& m = geometry_.mamba;
  const auto index = static_cast<size_t>(head);
  const MatrixView<float> projected =
      step.workspace->projected.view().row_range(chunk.first_row, chunk.tokens);
  const MatrixView<float> convolved =
      step.workspace->convolved.view().row_range(chunk.first_row, chunk.tokens);
  const MatrixView<float> x = convolved.column_range(head * m.head_dim, Extent(m.head_dim));
  const int64_t group = head / (m.heads / m.groups);
  const int64_t b = m.inner() + group * m.state;
  float* state = head_state(step, chunk, head);
  if (chunk.first_position == 0) std::fill_n(state, head_state_floats(m), 0.0f);
  step.exec->kernels().ssm_scan(
      {.x = x,
       .b = convolved.column_range(b, Extent(m.state)),
       .c = convolved.column_range(b + m.groups * m.state, Extent(m.state)),
       .dt = projected.data() + m.inner() + m.conv_width() + head,
       .dt_stride = projected.stride(),
       .dt_bias = weights_.dt_bias[index],
       .a = weights_.a[index],
       .d = weights_.d[index],
       .state = state,
       .y = x});
}

void Mamba2Block::gate_and_norm(const Mamba2Step& step, int64_t tokens) const {
  const MambaConfig& m = geometry_.mamba;
  step.exec->for_rows(tokens, [&](int64_t first, int64_t count) {
    const auto inner = [&](const Matrix<float>& matrix) {
      return matrix.view().row_range(first, count).column_range(0, Extent(m.inner()));
    };
    const MatrixView<float> y = inner(step.workspace->convolved);
    step.exec->kernels().gated_norm({.y = y,
                                     .z = inner(step.workspace->projected),
                                     .weight = weights_.norm,
                                     .group = m.inner() / m.groups,
                                     .eps = geometry_.norm_eps,
                                     .out = y});
  });
}

// z, x, B, C and dt have been used: their place takes the output until it is added.
Result<MatrixView<const float>> Mamba2Block::project_back(const Mamba2Step& step,
                                                          MatrixView<float> residual) const {
  const Execution& exec = *step.exec;
  const int64_t tokens = residual.rows();
  const MatrixView<float> normed =
      step.workspace->convolved.rows_view(tokens).column_range(0, Extent(geometry_.mamba.inner()));
  const PreparedInput input =
      exec.prepare(normed, out_proj_.in(), out_proj_.layout(), step.workspace->prepared.data());
  const MatrixView<float> out =
      step.workspace->projected.rows_view(tokens).column_range(0, Extent(out_proj_.columns()));
  ROTA_RETURN_IF_ERROR(add_projection(exec, out_proj_, input, out, residual, *step.tensor));
  return MatrixView<const float>(out);
}

Result<MatrixView<const float>> Mamba2Block::run(const Mamba2Step& step, MatrixView<const float> in,
                                                 MatrixView<float> residual) const {
  const Execution& exec = *step.exec;
  const MambaConfig& m = geometry_.mamba;
  const auto chunks = static_cast<int64_t>(step.chunks.size());
  const auto chunk = [&](int64_t index) -> const SequenceChunk& {
    return step.chunks[static_cast<size_t>(index)];
  };
  const PreparedInput input =
      exec.prepare(in, in_proj_.in(), in_proj_.layout(), step.workspace->prepared.data());
  in_proj_.run(exec, input, step.workspace->projected.rows_view(in.rows()));

  const int64_t tiles = (m.conv_width() + kTileChannels - 1) / kTileChannels;
  exec.for_items(chunks * tiles, [&](int64_t item, int) {
    const int64_t first = item % tiles * kTileChannels;
    convolve(step, chunk(item / tiles), first, std::min(kTileChannels, m.conv_width() - first));
  });
  exec.for_items(chunks * m.heads,
                 [&](int64_t item, int) { scan(step, chunk(item / m.heads), item % m.heads); });
  gate_and_norm(step, in.rows());
  return project_back(step, residual);
}

}  // namespace rota
