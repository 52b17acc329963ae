#include "moe/prepare_finalize/arrived_tokens.h"

#include "moe/prepare_finalize/sum_slots.h"

namespace rota {

Result<ArrivedTokens> ArrivedTokens::make(const PrepareFinalizeSizing& sizing, int64_t max_tokens) {
  ROTA_ASSIGN_OR_RETURN(
      Matrix<float> hidden,
      Matrix<float>::allocate(max_tokens, Extent(sizing.plan->dispatch.logical())));
  return ArrivedTokens(sizing, max_tokens, std::move(hidden));
}

ArrivedTokens::ArrivedTokens(const PrepareFinalizeSizing& sizing, int64_t max_tokens,
                             Matrix<float> hidden)
    : kernels_(sizing.kernels),
      team_(sizing.team),
      k_(sizing.config->router.top_k),
      hidden_(std::move(hidden)),
      ids_(static_cast<size_t>(max_tokens * k_)),
      weights_(ids_.size()) {}

Bytes ArrivedTokens::bytes(const PrepareFinalizeSizing& sizing, int64_t max_tokens) {
  constexpr int64_t kChoice = sizeof(int32_t) + sizeof(float);
  constexpr int64_t kLine = static_cast<int64_t>(kCacheLine / sizeof(float));
  const int64_t row =
      round_up(sizing.plan->dispatch.logical(), kLine) * static_cast<int64_t>(sizeof(float));
  return {max_tokens * (row + sizing.config->router.top_k * kChoice)};
}

void ArrivedTokens::unpack(const WireToken& wire, const std::byte* from, int64_t tokens) {
  tokens_ = tokens;
  const MatrixView<float> hidden = hidden_.rows_view(tokens);
  const auto k = static_cast<size_t>(k_);
  for_blocks(*team_, tokens, [&](int64_t token) {
    const size_t first = static_cast<size_t>(token) * k;
    wire.unpack(*kernels_, from + token * wire.bytes(),
                {.row = hidden.row(token),
                 .ids = std::span(ids_).subspan(first, k),
                 .weights = std::span(weights_).subspan(first, k)});
  });
  poison_tails(hidden);
}

}  // namespace rota
