#include "kernels/linear.h"

namespace rota {
namespace {

// Enough tiles that an unlucky last one costs a few percent, none so narrow that it only costs.
constexpr int64_t kTilesPerThread = 8;
constexpr int64_t kMinTileColumns = 32;
// Nor so wide that the last one is waited for: 256 rows of 5 kB are read in 50 us.
constexpr int64_t kMaxTileColumns = 256;

int64_t tile_columns(int64_t columns, const Execution& exec) {
  const int64_t tiles = kTilesPerThread * exec.team().size();
  return std::clamp((columns + tiles - 1) / tiles, kMinTileColumns, kMaxTileColumns);
}

}  // namespace

void run_linear(const Execution& exec, const WeightMatrix& weights, const PreparedInput& input,
                MatrixView<float> out) {
  const int64_t columns = weights.out.logical();
  ROTA_DCHECK(out.width().logical() == columns && out.rows() >= input.tokens, "output's shape");
  const int64_t tile = round_up(tile_columns(columns, exec),
                                exec.kernels().column_granularity(weights, input.compute));
  exec.for_items((columns + tile - 1) / tile, [&](int64_t item, int member) {
    exec.kernels().matmul({.weights = &weights,
                           .input = input,
                           .first_column = item * tile,
                           .end_column = std::min((item + 1) * tile, columns),
                           .out = out.data(),
                           .out_stride = out.stride(),
                           .scratch = exec.scratch(member)});
  });
}

Result<Linear> Linear::make(std::vector<WeightMatrix> parts, const Execution& exec) {
  ROTA_CHECK(!parts.empty(), "a linear needs a matrix");
  const KernelTable& kernels = exec.kernels();
  Linear linear;
  linear.layout_ = kernels.input_layout(parts.front(), exec.compute());
  for (const WeightMatrix& part : parts) {
    const InputLayout layout = kernels.input_layout(part, exec.compute());
    if (part.in != parts.front().in || layout.kind != linear.layout_.kind ||
        layout.token_stride != linear.layout_.token_stride) {
      return error(StatusCode::kUnsupported,
                   "matrices that share an input are in {} and {}, expected one format, or formats "
                   "that read the input in the same order",
                   to_string(parts.front().format), to_string(part.format));
    }
    linear.columns_ += part.out.logical();
  }
  linear.parts_ = std::move(parts);
  for (size_t part = 0; part < linear.parts_.size(); ++part) {
    linear.add_tiles(part, tile_columns(linear.columns_, exec), exec);
  }
  return linear;
}

Bytes Linear::weight_bytes() const {
  Bytes bytes;
  for (const WeightMatrix& part : parts_) bytes = bytes + rota::weight_bytes(part);
  return bytes;
}

void Linear::add_tiles(size_t part, int64_t columns, const Execution& exec) {
  const WeightMatrix& weights = parts_[part];
  const int64_t step =
      round_up(columns, exec.kernels().column_granularity(weights, exec.compute()));
  int64_t begin = 0;
  for (size_t i = 0; i < part; ++i) begin += parts_[i].out.logical();
  for (int64_t first = 0; first < weights.out.logical(); first += step) {
    tiles_.push_back({.part = part,
                      .first = first,
                      .end = std::min(first + step, weights.out.logical()),
                      .out_column = begin + first});
  }
}

void Linear::run_tile(const Execution& exec, const Tile& tile, const PreparedInput& input,
                      MatrixView<float> out, int member) const {
  ROTA_DCHECK(out.width().logical() >= columns_ && out.rows() >= input.tokens, "output too small");
  exec.kernels().matmul({.weights = &parts_[tile.part],
                         .input = input,
                         .first_column = tile.first,
                         .end_column = tile.end,
                         .out = out.data() + (tile.out_column - tile.first),
                         .out_stride = out.stride(),
                         .scratch = exec.scratch(member)});
}

}  // namespace rota
