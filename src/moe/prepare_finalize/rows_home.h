// The way home of what whole experts made, in one exchange: each rank sends, to the home of every
// token that came to it, the rows of those slots that it owns, in order of token and slot. Home
// knows from its own ids who sends how many, so rows travel and nothing else; there they are
// summed.
#pragma once

#include <vector>

#include "moe/prepare_finalize.h"
#include "moe/prepare_finalize/wire.h"
#include "platform/memory.h"

namespace rota {

class RowsHome {
 public:
  // max_arrived: tokens of all ranks that come to this one in a pass.
  static Result<RowsHome> make(const PrepareFinalizeSizing& sizing, int64_t max_arrived);
  static Bytes bytes(const PrepareFinalizeSizing& sizing, int64_t max_arrived);

  // first_token [ranks + 1]: those of rank r are [first_token[r], first_token[r + 1]) of the tokens
  // that came.
  Status bring(const ExpertsOutput& experts, std::span<const int64_t> first_token,
               const TopK& mine);
  // After bring(): the sums of this rank's own tokens.
  void sum(const TopK& mine, MatrixView<float> out) const;

 private:
  explicit RowsHome(const PrepareFinalizeSizing& sizing);
  // Parts of bring(), in order.
  void pack(const ExpertsOutput& experts, std::span<const int64_t> first_token);
  void expect(const TopK& mine);

  PrepareFinalizeSizing sizing_;
  WireRow wire_;
  Buffer send_;                         // [rows sent, wire]
  Buffer received_;                     // [T * k, wire]
  std::vector<int64_t> send_begin_;     // [ranks + 1], bytes
  std::vector<int64_t> receive_begin_;  // [ranks + 1], bytes
  std::vector<int64_t> slot_of_sent_;   // which slot of those that came
  std::vector<int64_t> at_of_slot_;     // [T * k]: where its row is in received_, bytes
  std::vector<int64_t> next_;           // [ranks]
};

}  // namespace rota
