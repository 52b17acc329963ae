// Tokens that came to this rank, as its experts read them: rows [N, dispatch] in float32, ids and,
// where they travelled, weights [N, k].
//
//   arrived.unpack(wire, from, tokens);       // N tokens, one after another
//   experts.run(... arrived.input() ...)
#pragma once

#include <vector>

#include "moe/prepare_finalize.h"
#include "moe/prepare_finalize/wire.h"

namespace rota {

class ArrivedTokens {
 public:
  static Result<ArrivedTokens> make(const PrepareFinalizeSizing& sizing, int64_t max_tokens);
  static Bytes bytes(const PrepareFinalizeSizing& sizing, int64_t max_tokens);

  void unpack(const WireToken& wire, const std::byte* from, int64_t tokens);
  ExpertsInput input() const { return {.hidden = hidden_.rows_view(tokens_), .topk = topk()}; }
  TopK topk() const { return {ids_.data(), weights_.data(), tokens_, k_}; }

 private:
  ArrivedTokens(const PrepareFinalizeSizing& sizing, int64_t max_tokens, Matrix<float> hidden);

  const KernelTable* kernels_;
  ThreadTeam* team_;
  int64_t k_;
  int64_t tokens_ = 0;
  Matrix<float> hidden_;
  std::vector<int32_t> ids_;
  std::vector<float> weights_;
};

}  // namespace rota
