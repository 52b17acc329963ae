#include "moe/gate.h"

#include <algorithm>

namespace rota {
namespace {

constexpr int64_t kBlockTokens = 16;
constexpr int64_t kTileColumns = 16;

int64_t to_lines(int64_t bytes) { return round_up(bytes, static_cast<int64_t>(kCacheLine)); }

// The widest input that any router format needs.
int64_t token_stride(const KernelTable& kernels, Extent in) {
  int64_t bytes = 0;
  for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kFloat32}) {
    WeightMatrix shape;
    shape.format = format;
    shape.in = in;
    bytes = std::max(bytes, kernels.input_layout(shape, Compute::kFloat32).token_stride.count);
  }
  return bytes;
}

}  // namespace

Result<Gate> Gate::make(const MoeConfig& config, const KernelTable& kernels, ThreadTeam& team,
                        int64_t max_tokens) {
  Gate gate;
  gate.kernels_ = &kernels;
  gate.team_ = &team;
  gate.config_ = config.router;
  gate.hidden_ = Extent(config.hidden);
  gate.max_tokens_ = max_tokens;
  gate.prepared_bytes_ = to_lines(kBlockTokens * token_stride(kernels, gate.hidden_));
  gate.logits_bytes_ =
      to_lines(kBlockTokens * config.router.experts * static_cast<int64_t>(sizeof(float)));
  gate.room_bytes_ = gate.prepared_bytes_ + gate.logits_bytes_ +
                     to_lines(kernels.matmul_scratch_bytes(gate.hidden_).count);
  ROTA_ASSIGN_OR_RETURN(
      gate.rooms_,
      Buffer::allocate(static_cast<size_t>(gate.room_bytes_ * team.size()), Fill::kUnspecified));
  constexpr int64_t kChoice = sizeof(int32_t) + sizeof(float);
  ROTA_ASSIGN_OR_RETURN(
      gate.chosen_,
      Buffer::allocate(static_cast<size_t>(max_tokens * config.router.top_k * kChoice),
                       Fill::kUnspecified));
  return gate;
}

int64_t Gate::workspace_bytes() const {
  return static_cast<int64_t>(rooms_.size() + chosen_.size());
}

Gate::Room Gate::room(int member, int64_t tokens) const {
  std::byte* const base = rooms_.data() + member * room_bytes_;
  return {.prepared = base,
          .logits = {reinterpret_cast<float*>(base + prepared_bytes_), tokens,
                     Extent(config_.experts), config_.experts},
          .scratch = {base + prepared_bytes_ + logits_bytes_,
                      static_cast<size_t>(room_bytes_ - prepared_bytes_ - logits_bytes_)}};
}

PreparedInput Gate::prepare(const WeightMatrix& router, MatrixView<const float> rows,
                            const Room& room) const {
  const InputLayout layout = kernels_->input_layout(router, Compute::kFloat32);
  return kernels_->prepare_input(rows, {}, hidden_, layout, Compute::kFloat32, room.prepared);
}

void Gate::columns(const WeightMatrix& router, const PreparedInput& x, int64_t first, int64_t end,
                   const Room& room) const {
  kernels_->matmul({.weights = &router,
                    .input = x,
                    .first_column = first,
                    .end_column = end,
                    .out = room.logits.data(),
                    .out_stride = room.logits.stride(),
                    .scratch = room.scratch});
}

void Gate::choose(const Room& room, int64_t first_token) const {
  const auto slots = static_cast<size_t>(max_tokens_ * config_.top_k);
  const auto at = static_cast<size_t>(first_token * config_.top_k);
  const auto count = static_cast<size_t>(room.logits.rows() * config_.top_k);
  auto* ids = reinterpret_cast<int32_t*>(chosen_.data());
  auto* weights = reinterpret_cast<float*>(ids + slots);
  route(config_, room.logits, correction_bias_, {ids + at, count}, {weights + at, count});
}

// One block: its columns are shared out.
void Gate::few_tokens(const WeightMatrix& router, MatrixView<const float> hidden) {
  const Room shared = room(0, hidden.rows());
  const PreparedInput x = prepare(router, hidden, shared);
  const int64_t tile =
      round_up(kTileColumns, kernels_->column_granularity(router, Compute::kFloat32));
  const int64_t experts = config_.experts;
  team_->parallel_for((experts + tile - 1) / tile, [&](int64_t item, int member) {
    Room own = shared;
    own.scratch = room(member, hidden.rows()).scratch;
    columns(router, x, item * tile, std::min(experts, (item + 1) * tile), own);
  });
  choose(shared, 0);
}

void Gate::many_tokens(const WeightMatrix& router, MatrixView<const float> hidden) {
  const int64_t tokens = hidden.rows();
  team_->parallel_for((tokens + kBlockTokens - 1) / kBlockTokens, [&](int64_t block, int member) {
    const int64_t first = block * kBlockTokens;
    const int64_t count = std::min(kBlockTokens, tokens - first);
    const Room own = room(member, count);
    const PreparedInput x = prepare(router, hidden.row_range(first, count), own);
    columns(router, x, 0, config_.experts, own);
    choose(own, first);
  });
}

TopK Gate::run(const WeightMatrix& router, std::span<const float> correction_bias,
               MatrixView<const float> hidden) {
  correction_bias_ = correction_bias;
  ROTA_CHECK(hidden.rows() <= max_tokens_ && hidden.width().logical() == hidden_.logical(),
             "the gate sees the full hidden state of no more tokens than it was made for");
  if (hidden.rows() <= kBlockTokens) {
    few_tokens(router, hidden);
  } else {
    many_tokens(router, hidden);
  }
  auto* ids = reinterpret_cast<const int32_t*>(chosen_.data());
  const auto* weights = reinterpret_cast<const float*>(ids + max_tokens_ * config_.top_k);
  return {.ids = ids, .weights = weights, .tokens = hidden.rows(), .k = config_.top_k};
}

}  // namespace rota
