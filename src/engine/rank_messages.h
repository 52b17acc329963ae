// What ranks tell one another between steps: frames of wire.h, put down until the step's header has
// said how long they are, then exchanged by all ranks at once. Rank 0 speaks to any rank, all
// others to rank 0.
//
//   messages.add(3, frame);
//   headers.exchange({... .message_bytes = messages.bytes_to(0)}, ...);
//   if (headers.has_messages()) messages.exchange(headers.bytes_from());
//   messages.from(0)                                // [frames]: until the next exchange()
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"

namespace rota {

class RankMessages {
 public:
  explicit RankMessages(Communicator& control);  // outlives this

  void add(int rank, std::string_view frame);                      // also to itself
  std::span<const int64_t> bytes_to() const { return bytes_to_; }  // [ranks]
  std::string_view frames_to(int rank) const { return to_[static_cast<size_t>(rank)]; }
  bool empty() const { return total_ == 0; }

  // Collective. bytes_from [ranks]: what the others have said that they have for this one.
  Status exchange(std::span<const int64_t> bytes_from);
  std::string_view from(int rank) const;

 private:
  Communicator* control_;
  std::vector<std::string> to_;
  std::vector<int64_t> bytes_to_;
  int64_t total_ = 0;
  std::vector<std::byte> sent_, received_;
  std::vector<int64_t> sent_begin_, received_begin_;
};

}  // namespace rota
