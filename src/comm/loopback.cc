#include "comm/loopback.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "comm/loopback_group.h"

namespace rota {
namespace {

Status put_into(const Buffer& memory, int rank, Bytes offset, std::span<const std::byte> bytes) {
  const auto at = static_cast<size_t>(offset.count);
  if (offset.count < 0 || at > memory.size() || bytes.size() > memory.size() - at) {
    return error(StatusCode::kInternal, "put: bytes {} to {} of rank {}'s window, which has {}",
                 offset.count, offset.count + static_cast<int64_t>(bytes.size()), rank,
                 memory.size());
  }
  if (!bytes.empty()) std::memcpy(memory.data() + at, bytes.data(), bytes.size());
  return {};
}

class OneRankWindow final : public CommWindow {
 public:
  explicit OneRankWindow(Buffer memory) : memory_(std::move(memory)) {}
  std::span<std::byte> memory() override { return {memory_.data(), memory_.size()}; }
  Status put(int rank, Bytes offset, std::span<const std::byte> bytes) override {
    return put_into(memory_, rank, offset, bytes);
  }
  Status finish_epoch() override { return {}; }

 private:
  Buffer memory_;
};

class OneRank final : public Communicator {
 public:
  int ranks() const override { return 1; }
  int rank() const override { return 0; }

 private:
  Status do_all_gather(std::span<const std::byte> mine, const ReceivedPieces& all) override {
    if (!mine.empty()) std::memmove(all.of(0).data(), mine.data(), mine.size());
    return {};
  }
  Status do_start(const SentPieces& send, const ReceivedPieces& receive) override {
    if (send.of(0).size() != receive.of(0).size()) {
      return error(StatusCode::kInternal,
                   "exchange: rank 0 sends {} bytes to itself and expects {}", send.of(0).size(),
                   receive.of(0).size());
    }
    return do_all_gather(send.of(0), receive);
  }
  bool do_progress() override { return true; }
  Status do_finish() override { return {}; }
  Result<std::unique_ptr<CommWindow>> do_make_window(Bytes bytes) override {
    ROTA_ASSIGN_OR_RETURN(Buffer memory,
                          Buffer::allocate(static_cast<size_t>(bytes.count), Fill::kZero));
    return std::unique_ptr<CommWindow>(std::make_unique<OneRankWindow>(std::move(memory)));
  }
  Status do_barrier() override { return {}; }
  Result<std::unique_ptr<Communicator>> do_split(int) override {
    return std::unique_ptr<Communicator>(std::make_unique<OneRank>());
  }
};

using Meeting = LoopbackGroup::Meeting;

Status meet(LoopbackGroup& group, int rank) {
  ROTA_RETURN_IF_ERROR(group.post(rank, Meeting::kBarrier, {}, {}));
  return group.finish(rank);
}

class ThreadWindow final : public CommWindow {
 public:
  ThreadWindow(std::shared_ptr<LoopbackGroup> group, int rank,
               std::shared_ptr<LoopbackGroup::WindowMemory> memory)
      : group_(std::move(group)), rank_(rank), memory_(std::move(memory)) {}

  std::span<std::byte> memory() override { return {of(rank_).data(), of(rank_).size()}; }
  Status put(int rank, Bytes offset, std::span<const std::byte> bytes) override {
    return put_into(of(rank), rank, offset, bytes);
  }
  Status finish_epoch() override { return meet(*group_, rank_); }

 private:
  const Buffer& of(int rank) const { return memory_->of_rank[static_cast<size_t>(rank)]; }

  std::shared_ptr<LoopbackGroup> group_;
  int rank_;
  std::shared_ptr<LoopbackGroup::WindowMemory> memory_;
};

class ThreadRank final : public Communicator {
 public:
  ThreadRank(std::shared_ptr<LoopbackGroup> group, int rank)
      : Communicator(group->options()), group_(std::move(group)), rank_(rank) {}
  int ranks() const override { return group_->ranks(); }
  int rank() const override { return rank_; }

 private:
  Status do_all_gather(std::span<const std::byte> mine, const ReceivedPieces& all) override {
    const std::array<int64_t, 2> begin = {0, static_cast<int64_t>(mine.size())};
    ROTA_RETURN_IF_ERROR(group_->post(rank_, Meeting::kGather, {mine.data(), begin}, all));
    return group_->finish(rank_);
  }
  Status do_start(const SentPieces& send, const ReceivedPieces& receive) override {
    return group_->post(rank_, Meeting::kExchange, send, receive);
  }
  bool do_progress() override { return group_->progress(rank_); }
  Status do_finish() override { return group_->finish(rank_); }

  Result<std::unique_ptr<CommWindow>> do_make_window(Bytes bytes) override {
    ROTA_ASSIGN_OR_RETURN(Buffer mine,
                          Buffer::allocate(static_cast<size_t>(bytes.count), Fill::kZero));
    auto memory = group_->window(windows_++);
    memory->of_rank[static_cast<size_t>(rank_)] = std::move(mine);
    ROTA_RETURN_IF_ERROR(meet(*group_, rank_));
    return std::unique_ptr<CommWindow>(
        std::make_unique<ThreadWindow>(group_, rank_, std::move(memory)));
  }
  Status do_barrier() override { return meet(*group_, rank_); }

  Result<std::unique_ptr<Communicator>> do_split(int colour) override {
    std::vector<int> colours(static_cast<size_t>(ranks()));
    std::vector<int64_t> begin(colours.size() + 1);
    for (size_t r = 0; r < begin.size(); ++r) begin[r] = static_cast<int64_t>(r * sizeof(int));
    ROTA_RETURN_IF_ERROR(do_all_gather(std::as_bytes(std::span(&colour, 1)),
                                       {std::as_writable_bytes(std::span(colours)).data(), begin}));
    const auto part =
        group_->part(splits_++, colour, static_cast<int>(std::ranges::count(colours, colour)));
    ROTA_RETURN_IF_ERROR(meet(*group_, rank_));  // nobody lets the part go before all have it
    const auto before = std::span(colours).first(static_cast<size_t>(rank_));
    return std::unique_ptr<Communicator>(
        std::make_unique<ThreadRank>(part, static_cast<int>(std::ranges::count(before, colour))));
  }

  std::shared_ptr<LoopbackGroup> group_;
  int rank_;
  int64_t windows_ = 0, splits_ = 0;  // made so far
};

}  // namespace

Communicator& loopback() {
  static OneRank one;
  return one;
}

LoopbackRanks::LoopbackRanks(int ranks, const CommOptions& options) {
  const auto group = std::make_shared<LoopbackGroup>(ranks, options);
  for (int rank = 0; rank < ranks; ++rank) {
    communicators_.push_back(std::make_unique<ThreadRank>(group, rank));
  }
}

Communicator& LoopbackRanks::communicator(int rank) {
  return *communicators_[static_cast<size_t>(rank)];
}

void LoopbackRanks::run(const std::function<void(Communicator&)>& body) {
  std::vector<std::jthread> threads;
  threads.reserve(communicators_.size());
  for (const auto& rank : communicators_) threads.emplace_back([&] { body(*rank); });
}

}  // namespace rota
