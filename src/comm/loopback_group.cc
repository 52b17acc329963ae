#include "comm/loopback_group.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>

namespace rota {
namespace {

std::string_view to_string(LoopbackGroup::Meeting meeting) {
  switch (meeting) {
    case LoopbackGroup::Meeting::kBarrier:
      return "a barrier";
    case LoopbackGroup::Meeting::kGather:
      return "a gather";
    case LoopbackGroup::Meeting::kExchange:
      return "an exchange";
  }
  return "an unknown meeting";
}

// The poster may drop its list of begins: keep it, in memory that stays.
template <typename Byte>
RankPieces<Byte> kept(const RankPieces<Byte>& pieces, std::vector<int64_t>& begin) {
  begin.assign(pieces.begin.begin(), pieces.begin.end());
  return {pieces.data, begin};
}

}  // namespace

LoopbackGroup::LoopbackGroup(int ranks, const CommOptions& options)
    : options_(options), ranks_(static_cast<size_t>(ranks)) {}

Status LoopbackGroup::post(int rank, Meeting meeting, const SentPieces& offer,
                           const ReceivedPieces& into) {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  Rank& self = ranks_[static_cast<size_t>(rank)];
  self.meeting = meeting;
  self.offer = kept(offer, self.offer_begin);
  self.into = kept(into, self.into_begin);
  ++self.posted;
  changed_.notify_all();
  return {};
}

bool LoopbackGroup::progress(int rank) {
  const std::lock_guard lock(mutex_);
  take_if_posted(rank);
  const int64_t meeting = ranks_[static_cast<size_t>(rank)].posted;
  return !failure_.ok() || all_reached(&Rank::taken, meeting);
}

Status LoopbackGroup::finish(int rank) {
  std::unique_lock lock(mutex_);
  Rank& self = ranks_[static_cast<size_t>(rank)];
  // What was computed since post() is not waiting: the time begins here.
  self.deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                     std::chrono::duration<double>(options_.timeout_seconds));
  ROTA_RETURN_IF_ERROR(wait(lock, self, &Rank::posted));
  take_if_posted(rank);
  return wait(lock, self, &Rank::taken);
}

bool LoopbackGroup::all_reached(int64_t Rank::* what, int64_t meeting) const {
  return std::ranges::all_of(ranks_, [&](const Rank& r) { return r.*what >= meeting; });
}

Status LoopbackGroup::wait(std::unique_lock<std::mutex>& lock, const Rank& self,
                           int64_t Rank::* what) {
  const bool came = changed_.wait_until(
      lock, self.deadline, [&] { return !failure_.ok() || all_reached(what, self.posted); });
  if (!failure_.ok()) return failure_;
  if (came) return {};
  std::vector<size_t> missing;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r].*what < self.posted) missing.push_back(r);
  }
  return fail(error(StatusCode::kUnavailable, "{} {} of {} did not come to {} within {} s",
                    missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "), ranks_.size(),
                    to_string(self.meeting), options_.timeout_seconds));
}

Status LoopbackGroup::fail(Status status) {
  if (failure_.ok()) failure_ = std::move(status);
  changed_.notify_all();
  return failure_;
}

void LoopbackGroup::take_if_posted(int rank) {
  Rank& self = ranks_[static_cast<size_t>(rank)];
  if (!failure_.ok() || self.taken == self.posted || !all_reached(&Rank::posted, self.posted)) {
    return;
  }
  if (Status status = take(rank); !status.ok()) {
    static_cast<void>(fail(std::move(status)));
    return;
  }
  self.taken = self.posted;
  changed_.notify_all();
}

Status LoopbackGroup::take(int rank) {
  const Rank& self = ranks_[static_cast<size_t>(rank)];
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const Rank& other = ranks_[r];
    if (other.meeting != self.meeting) {
      return error(StatusCode::kInternal,
                   "the ranks do not do the same: rank {} is at {}, rank {} at {}", rank,
                   to_string(self.meeting), r, to_string(other.meeting));
    }
    if (self.meeting == Meeting::kBarrier) continue;
    const auto from = other.offer.of(self.meeting == Meeting::kExchange ? rank : 0);
    const auto to = self.into.of(static_cast<int>(r));
    if (from.size() != to.size()) {
      return error(StatusCode::kInternal, "{}: rank {} sends {} bytes to rank {}, which expects {}",
                   to_string(self.meeting), r, from.size(), rank, to.size());
    }
    if (!from.empty()) std::memmove(to.data(), from.data(), from.size());
  }
  return {};
}

std::shared_ptr<LoopbackGroup::WindowMemory> LoopbackGroup::window(int64_t number) {
  const std::lock_guard lock(mutex_);
  std::weak_ptr<WindowMemory>& known = windows_[number];
  std::shared_ptr<WindowMemory> memory = known.lock();
  if (!memory) known = memory = std::make_shared<WindowMemory>(ranks());
  return memory;
}

std::shared_ptr<LoopbackGroup> LoopbackGroup::part(int64_t split, int colour, int ranks) {
  const std::lock_guard lock(mutex_);
  std::weak_ptr<LoopbackGroup>& known = parts_[{split, colour}];
  std::shared_ptr<LoopbackGroup> group = known.lock();
  if (!group) known = group = std::make_shared<LoopbackGroup>(ranks, options_);
  return group;
}

}  // namespace rota
