// What the threads of LoopbackRanks share: where each has come to, and what it offers to the
// others.
//
// Every operation is the same meeting: a rank posts what it offers, takes its pieces of all offers
// when all have posted, and is through when all have taken. A failure (a rank that does not come in
// time, pieces that do not fit) is everybody's, and stays. Pieces are copied under the lock, so
// that nobody who leaves after a failure pulls memory away from a reader.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "platform/clock.h"
#include "platform/memory.h"

namespace rota {

class LoopbackGroup {
 public:
  enum class Meeting { kBarrier, kGather, kExchange };

  LoopbackGroup(int ranks, const CommOptions& options);
  int ranks() const { return static_cast<int>(ranks_.size()); }
  const CommOptions& options() const { return options_; }

  // A gather offers one piece to all, an exchange one to each, a barrier none.
  Status post(int rank, Meeting meeting, const SentPieces& offer, const ReceivedPieces& into);
  bool progress(int rank);  // finish() will not wait
  Status finish(int rank);

  // What all ranks' windows with this number put into: theirs as long as one of them lives.
  struct WindowMemory {
    explicit WindowMemory(int ranks) : of_rank(static_cast<size_t>(ranks)) {}
    std::vector<Buffer> of_rank;
  };
  std::shared_ptr<WindowMemory> window(int64_t number);
  // The group of those that give this colour at this split.
  std::shared_ptr<LoopbackGroup> part(int64_t split, int colour, int ranks);

 private:
  struct Rank {
    Meeting meeting = Meeting::kBarrier;
    SentPieces offer;
    ReceivedPieces into;
    std::vector<int64_t> offer_begin, into_begin;
    int64_t posted = 0, taken = 0;  // meetings
    Clock::time_point deadline = {};
  };
  bool all_reached(int64_t Rank::* what, int64_t meeting) const;
  Status wait(std::unique_lock<std::mutex>& lock, const Rank& self, int64_t Rank::* what);
  Status fail(Status status);
  void take_if_posted(int rank);
  Status take(int rank);

  const CommOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Rank> ranks_;
  Status failure_;
  std::map<int64_t, std::weak_ptr<WindowMemory>> windows_;
  std::map<std::pair<int64_t, int>, std::weak_ptr<LoopbackGroup>> parts_;
};

}  // namespace rota
