// no_dp_ep: all tokens are here already and stay here. Dispatch passes them on; combine sums each
// token's experts in slot order. Slots of experts that other ranks hold add nothing.
#include <algorithm>

#include "moe/prepare_finalize.h"

namespace rota {
namespace {

constexpr int64_t kBlockTokens = 8;

void combine_token(const CombineArgs& args, int64_t token) {
  const std::span<float> out = args.out.row(token);
  std::fill(out.begin(), out.end(), 0.0f);
  const std::span<const float> weights = args.topk.weights_of(token);
  for (int64_t s = 0; s < args.topk.k; ++s) {
    const auto row = args.experts->row(token * args.topk.k + s);
    if (row) args.kernels->add_scaled(out, weights[static_cast<size_t>(s)], *row);
  }
}

class NoDpEp final : public PrepareFinalize {
 public:
  std::string_view name() const override { return to_string(Transport::kNoDpEp); }

  DispatchedTokens dispatch(MatrixView<const float> hidden, const TopK& topk) const override {
    return {.hidden = hidden, .topk = topk};
  }

  Partial<float> combine(const CombineArgs& args) const override {
    ROTA_CHECK(args.out.width().logical() == args.experts->rows.width().logical(),
               "the combine buffer is as wide as the experts' output");
    const int64_t tokens = args.topk.tokens;
    const auto block = [&](int64_t index, int) {
      const int64_t end = std::min(tokens, (index + 1) * kBlockTokens);
      for (int64_t t = index * kBlockTokens; t < end; ++t) combine_token(args, t);
    };
    args.team->parallel_for((tokens + kBlockTokens - 1) / kBlockTokens, block);
    return Partial<float>(args.out);
  }
};

}  // namespace

const PrepareFinalize& prepare_finalize_for(Transport transport) {
  static const NoDpEp no_dp_ep;
  ROTA_CHECK(transport == Transport::kNoDpEp, "plan_moe() plans no other transport");
  return no_dp_ep;
}

}  // namespace rota
