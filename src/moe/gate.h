// The router of a layer: logits from the full, unpadded hidden state (R7) in float32, then route().
// Splits the work over the team by columns for a few tokens and by tokens for many; results do not
// depend on that.
//
//   TopK topk = gate.run(layer.router(), layer.correction_bias(), hidden);
// The result [T, k] is valid until the next run().
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "kernels/kernels.h"
#include "moe/config.h"
#include "moe/routing.h"
#include "platform/memory.h"
#include "platform/thread_team.h"
#include "tensor/matrix.h"

namespace rota {

class Gate {
 public:
  Gate() = default;
  static Result<Gate> make(const MoeConfig& config, const KernelTable& kernels, ThreadTeam& team,
                           int64_t max_tokens);

  // correction_bias [E] or empty.
  TopK run(const WeightMatrix& router, std::span<const float> correction_bias,
           MatrixView<const float> hidden);
  int64_t workspace_bytes() const;

 private:
  // A member's room for one block of tokens.
  struct Room {
    std::byte* prepared;       // [kBlockTokens, token_stride]
    MatrixView<float> logits;  // [kBlockTokens, E]
    std::span<std::byte> scratch;
  };
  Room room(int member, int64_t tokens) const;
  void columns(const WeightMatrix& router, const PreparedInput& x, int64_t first, int64_t end,
               const Room& room) const;
  void few_tokens(const WeightMatrix& router, MatrixView<const float> hidden);
  void many_tokens(const WeightMatrix& router, MatrixView<const float> hidden);
  void choose(const Room& room, int64_t first_token) const;
  PreparedInput prepare(const WeightMatrix& router, MatrixView<const float> rows,
                        const Room& room) const;

  const KernelTable* kernels_ = nullptr;
  ThreadTeam* team_ = nullptr;
  RouterConfig config_;
  std::span<const float> correction_bias_;  // of the running layer
  Extent hidden_{1};
  Buffer rooms_;
  Buffer chosen_;  // ids [T, k], weights [T, k]
  int64_t max_tokens_ = 0;
  int64_t prepared_bytes_ = 0;
  int64_t logits_bytes_ = 0;
  int64_t room_bytes_ = 0;
};

}  // namespace rota
