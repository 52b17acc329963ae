#include "checkpoint/load_team.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace rota {
namespace {

constexpr std::chrono::milliseconds kProgressInterval{100};

class PieceRun {
 public:
  PieceRun(std::span<const LoadPiece> pieces, const LoadOptions& options,
           const std::function<Status(const LoadPiece&)>& fn)
      : pieces_(pieces), options_(options), fn_(fn) {
    for (const LoadPiece& piece : pieces) total_ += piece.length;
  }

  Status run() {
    const auto wanted = static_cast<size_t>(std::max(1, options_.threads));
    const size_t count = std::min(wanted, std::max<size_t>(1, pieces_.size()));
    working_ = count;
    {
      std::vector<std::jthread> workers;
      workers.reserve(count);
      for (size_t i = 0; i < count; ++i) workers.emplace_back([this] { work(); });
      wait_and_report();
    }
    if (status_.ok() && done_ < total_) return error(StatusCode::kCancelled, "loading was stopped");
    if (status_.ok()) report();
    return status_;
  }

 private:
  void work() {
    while (!failed_ && !options_.stop.stop_requested()) {
      const size_t index = next_.fetch_add(1);
      if (index >= pieces_.size()) break;
      Status status = fn_(pieces_[index]);
      if (status.ok()) {
        done_ += pieces_[index].length;
      } else {
        const std::lock_guard lock(mutex_);
        if (status_.ok()) status_ = std::move(status);
        failed_ = true;
      }
    }
    const std::lock_guard lock(mutex_);
    --working_;
    finished_.notify_one();
  }

  void wait_and_report() {
    std::unique_lock lock(mutex_);
    while (!finished_.wait_for(lock, kProgressInterval, [this] { return working_ == 0; })) {
      lock.unlock();
      report();
      lock.lock();
    }
  }

  void report() const {
    if (options_.progress) options_.progress(done_, total_);
  }

  std::span<const LoadPiece> pieces_;
  const LoadOptions& options_;
  const std::function<Status(const LoadPiece&)>& fn_;
  int64_t total_ = 0;

  std::atomic<size_t> next_{0};
  std::atomic<int64_t> done_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // status_, working_
  std::condition_variable finished_;
  size_t working_ = 0;
  Status status_;
};

}  // namespace

std::vector<LoadPiece> cut_into_pieces(std::span<const int64_t> sizes, int64_t piece_bytes) {
  std::vector<LoadPiece> whole;
  whole.reserve(sizes.size());
  for (size_t item = 0; item < sizes.size(); ++item) whole.push_back({item, 0, sizes[item]});
  return cut_into_pieces(whole, piece_bytes);
}

std::vector<LoadPiece> cut_into_pieces(std::span<const LoadPiece> ranges, int64_t piece_bytes) {
  std::vector<LoadPiece> pieces;
  for (const LoadPiece& range : ranges) {
    for (int64_t at = 0; at < range.length; at += piece_bytes) {
      pieces.push_back({range.item, range.offset + at, std::min(piece_bytes, range.length - at)});
    }
  }
  return pieces;
}

Status run_pieces(std::span<const LoadPiece> pieces, const LoadOptions& options,
                  const std::function<Status(const LoadPiece&)>& fn) {
  return PieceRun(pieces, options, fn).run();
}

}  // namespace rota
