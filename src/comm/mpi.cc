#include "comm/mpi.h"

#include <fmt/ranges.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "platform/clock.h"

namespace rota {
namespace {

// A failed communicator anywhere: MPI_Finalize would wait for those that do not come.
bool any_failed = false;

Status status_of_mpi(int code, std::string_view what) {
  if (code == MPI_SUCCESS) return {};
  std::array<char, MPI_MAX_ERROR_STRING> text = {};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return error(StatusCode::kInternal, "{}: {}", what,
               std::string_view(text.data(), static_cast<size_t>(length)));
}

// MPI counts in int.
Status to_ints(std::span<const int64_t> begin, std::vector<int>& offsets,
               std::vector<int>& counts) {
  if (begin.back() > std::numeric_limits<int>::max()) {
    return error(StatusCode::kUnsupported,
                 "a buffer of {} bytes for all ranks: MPI takes up to {}; use smaller batches",
                 begin.back(), std::numeric_limits<int>::max());
  }
  for (size_t r = 0; r + 1 < begin.size(); ++r) {
    offsets[r] = static_cast<int>(begin[r]);
    counts[r] = static_cast<int>(begin[r + 1] - begin[r]);
  }
  return {};
}

// How a waiting rank leaves the core to others: at first for a moment, then for longer.
class Patience {
 public:
  bool is_long() const { return polls_ > kYields; }
  void pause() {
    if (++polls_ <= kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(std::min(20 + polls_ - kYields, 1000)));
    }
  }

 private:
  static constexpr int kYields = 100;
  int polls_ = 0;
};

// Where the ranks are: a rank that waits long tells it, once for each meeting, or when it gives up.
// The messages are small and rare, on a communicator of their own.
class Whereabouts {
 public:
  Status make(MPI_Comm comm) {
    ROTA_RETURN_IF_ERROR(status_of_mpi(MPI_Comm_dup(comm, &comm_), "MPI_Comm_dup"));
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    int ranks = 0;
    MPI_Comm_size(comm_, &ranks);
    MPI_Comm_rank(comm_, &rank_);
    heard_.resize(static_cast<size_t>(ranks));
    sends_.resize(static_cast<size_t>(ranks), MPI_REQUEST_NULL);
    return {};
  }
  void free() { MPI_Comm_free(&comm_); }

  // To all, once. What was said before is on its way still: then nothing, the next poll tries
  // again.
  void tell(int64_t meeting) {
    int sent = 0;
    if (told_ == meeting || MPI_Testall(ranks(), sends_.data(), &sent, MPI_STATUSES_IGNORE) != 0 ||
        sent == 0) {
      return;
    }
    told_ = meeting;
    for (int r = 0; r < ranks(); ++r) {
      if (r == rank_) continue;
      MPI_Isend(&told_, 1, MPI_INT64_T, r, 0, comm_, &sends_[static_cast<size_t>(r)]);
    }
  }
  void listen() {
    int there = 1;
    for (MPI_Status from; MPI_Iprobe(MPI_ANY_SOURCE, 0, comm_, &there, &from) == 0 && there != 0;) {
      int64_t& heard = heard_[static_cast<size_t>(from.MPI_SOURCE)];
      MPI_Recv(&heard, 1, MPI_INT64_T, from.MPI_SOURCE, 0, comm_, MPI_STATUS_IGNORE);
    }
  }
  bool heard_of(int64_t meeting) const { return std::ranges::max(heard_) >= meeting; }
  std::vector<int> not_at(int64_t meeting) const {
    std::vector<int> missing;
    for (int r = 0; r < ranks(); ++r) {
      if (r != rank_ && heard_[static_cast<size_t>(r)] < meeting) missing.push_back(r);
    }
    return missing;
  }

 private:
  int ranks() const { return static_cast<int>(heard_.size()); }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int64_t told_ = 0;            // the meeting; sends_ read it
  std::vector<int64_t> heard_;  // of each rank: the last meeting it told of
  std::vector<MPI_Request> sends_;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(const CommOptions& options) : Communicator(options) {}
  ~MpiCommunicator() override;
  Status make(MPI_Comm comm);  // takes it

  int ranks() const override { return ranks_; }
  int rank() const override { return rank_; }
  MPI_Comm comm() const { return comm_; }
  bool on_one_host() const { return on_one_host_; }
  const Status& failure() const { return failure_; }
  Status meet();  // all ranks have come, within the deadline
  Status failed(Status status);

 private:
  Status do_all_gather(std::span<const std::byte> mine, const ReceivedPieces& all) override;
  Status do_start(const SentPieces& send, const ReceivedPieces& receive) override;
  bool do_progress() override;
  Status do_finish() override { return wait("exchange"); }
  Result<std::unique_ptr<CommWindow>> do_make_window(Bytes bytes) override;
  Status do_barrier() override { return meet(); }
  Result<std::unique_ptr<Communicator>> do_split(int colour) override;

  // Of the one request: what MPI said when it began, whether it is done, and until it is.
  Status started(int code, std::string_view what);
  bool test(std::string_view what);
  Status wait(std::string_view what);
  Status nobody_came(std::string_view what);

  MPI_Comm comm_ = MPI_COMM_NULL;
  int ranks_ = 1, rank_ = 0;
  bool on_one_host_ = false;
  Whereabouts whereabouts_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  int64_t meetings_ = 0;
  Status failure_;
  std::vector<int> send_offsets_, send_counts_, offsets_, counts_;
};

Status MpiCommunicator::make(MPI_Comm comm) {
  comm_ = comm;
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_size(comm_, &ranks_);
  MPI_Comm_rank(comm_, &rank_);
  for (auto* ints : {&send_offsets_, &send_counts_, &offsets_, &counts_}) {
    ints->resize(static_cast<size_t>(ranks_));
  }
  MPI_Comm host = MPI_COMM_NULL;
  ROTA_RETURN_IF_ERROR(
      status_of_mpi(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host),
                    "MPI_Comm_split_type"));
  int on_host = 0;
  MPI_Comm_size(host, &on_host);
  MPI_Comm_free(&host);
  on_one_host_ = on_host == ranks_;
  return whereabouts_.make(comm_);
}

MpiCommunicator::~MpiCommunicator() {
  if (comm_ == MPI_COMM_NULL || !failure_.ok()) return;
  whereabouts_.free();
  MPI_Comm_free(&comm_);
}

Status MpiCommunicator::failed(Status status) {
  if (failure_.ok()) {
    failure_ = std::move(status);
    any_failed = true;
  }
  return failure_;
}

Status MpiCommunicator::started(int code, std::string_view what) {
  if (code != MPI_SUCCESS) return failed(status_of_mpi(code, what));
  ++meetings_;
  return {};
}

bool MpiCommunicator::test(std::string_view what) {
  int done = 0;
  const int code = MPI_Test(&request_, &done, MPI_STATUS_IGNORE);
  if (code != MPI_SUCCESS) static_cast<void>(failed(status_of_mpi(code, what)));
  return done != 0 || !failure_.ok();
}

Status MpiCommunicator::wait(std::string_view what) {
  const Clock::time_point start = Clock::now();
  const double timeout = options().timeout_seconds;
  for (Patience patience; failure_.ok() && !test(what); patience.pause()) {
    if (!patience.is_long()) continue;
    whereabouts_.listen();
    const double waited = seconds_since(start);
    if (waited > timeout) return nobody_came(what);
    if (waited > timeout / 2 || whereabouts_.heard_of(meetings_)) whereabouts_.tell(meetings_);
  }
  return failure_;
}

Status MpiCommunicator::nobody_came(std::string_view what) {
  const std::vector<int> missing = whereabouts_.not_at(meetings_);
  if (missing.empty()) {
    return failed(error(StatusCode::kUnavailable,
                        "all {} ranks came to operation {}, {}, but it did not end within {} s",
                        ranks_, meetings_, what, options().timeout_seconds));
  }
  return failed(error(StatusCode::kUnavailable, "{} {} of {} did not come to {} within {} s",
                      missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "), ranks_,
                      what, options().timeout_seconds));
}

Status MpiCommunicator::meet() {
  ROTA_RETURN_IF_ERROR(failure_);
  ROTA_RETURN_IF_ERROR(started(MPI_Ibarrier(comm_, &request_), "barrier"));
  return wait("barrier");
}

Status MpiCommunicator::do_all_gather(std::span<const std::byte> mine, const ReceivedPieces& all) {
  ROTA_RETURN_IF_ERROR(failure_);
  ROTA_RETURN_IF_ERROR(to_ints(all.begin, offsets_, counts_));
  // In place on all ranks or on none, says MPI: so on all.
  if (!mine.empty()) std::memmove(all.of(rank_).data(), mine.data(), mine.size());
  ROTA_RETURN_IF_ERROR(started(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, all.data, counts_.data(),
                                               offsets_.data(), MPI_BYTE, comm_, &request_),
                               "all_gather"));
  return wait("all_gather");
}

Status MpiCommunicator::do_start(const SentPieces& send, const ReceivedPieces& receive) {
  ROTA_RETURN_IF_ERROR(failure_);
  ROTA_RETURN_IF_ERROR(to_ints(send.begin, send_offsets_, send_counts_));
  ROTA_RETURN_IF_ERROR(to_ints(receive.begin, offsets_, counts_));
  return started(
      MPI_Ialltoallv(send.data, send_counts_.data(), send_offsets_.data(), MPI_BYTE, receive.data,
                     counts_.data(), offsets_.data(), MPI_BYTE, comm_, &request_),
      "exchange");
}

bool MpiCommunicator::do_progress() { return test("exchange"); }

// Collectives of MPI that have no form that can be waited for begin when all ranks have come.
Result<std::unique_ptr<Communicator>> MpiCommunicator::do_split(int colour) {
  ROTA_RETURN_IF_ERROR(meet());
  MPI_Comm part = MPI_COMM_NULL;
  ROTA_RETURN_IF_ERROR(status_of_mpi(MPI_Comm_split(comm_, colour, rank_, &part), "split"));
  auto communicator = std::make_unique<MpiCommunicator>(options());
  ROTA_RETURN_IF_ERROR(communicator->make(part));
  return std::unique_ptr<Communicator>(std::move(communicator));
}

class MpiWindow final : public CommWindow {
 public:
  explicit MpiWindow(MpiCommunicator& ranks) : ranks_(&ranks) {}
  ~MpiWindow() override;
  Status make(Bytes bytes);
  std::vector<int64_t>& sizes() { return sizes_; }  // of each rank's memory

  std::span<std::byte> memory() override { return memory_; }
  Status put(int rank, Bytes offset, std::span<const std::byte> bytes) override;
  Status finish_epoch() override;

 private:
  MpiCommunicator* ranks_;
  MPI_Win window_ = MPI_WIN_NULL;
  std::span<std::byte> memory_;
  std::vector<int64_t> sizes_;
};

Status MpiWindow::make(Bytes bytes) {
  ROTA_RETURN_IF_ERROR(ranks_->meet());
  void* memory = nullptr;
  ROTA_RETURN_IF_ERROR(status_of_mpi(MPI_Win_allocate(bytes.count, 1, MPI_INFO_NULL, ranks_->comm(),
                                                      static_cast<void*>(&memory), &window_),
                                     "MPI_Win_allocate"));
  MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN);
  memory_ = {static_cast<std::byte*>(memory), static_cast<size_t>(bytes.count)};
  std::ranges::fill(memory_, std::byte{0});
  ROTA_RETURN_IF_ERROR(status_of_mpi(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_), "window"));
  MPI_Win_sync(window_);
  return ranks_->meet();  // nobody puts before all memory is zero
}

// Freeing waits for all ranks without a deadline: so they meet first, or it stays.
MpiWindow::~MpiWindow() {
  if (window_ == MPI_WIN_NULL || !ranks_->meet().ok()) return;
  MPI_Win_unlock_all(window_);
  MPI_Win_free(&window_);
}

Status MpiWindow::put(int rank, Bytes offset, std::span<const std::byte> bytes) {
  const int64_t room = sizes_[static_cast<size_t>(rank)];
  const auto length = static_cast<int64_t>(bytes.size());
  if (offset.count < 0 || offset.count > room || length > room - offset.count) {
    return error(StatusCode::kInternal, "put: bytes {} to {} of rank {}'s window, which has {}",
                 offset.count, offset.count + length, rank, room);
  }
  if (length > std::numeric_limits<int>::max()) {
    return error(StatusCode::kUnsupported, "put: {} bytes at once; MPI takes up to {}", length,
                 std::numeric_limits<int>::max());
  }
  if (length == 0) return {};
  const auto count = static_cast<int>(length);
  ROTA_RETURN_IF_ERROR(status_of_mpi(
      MPI_Put(bytes.data(), count, MPI_BYTE, rank, offset.count, count, MPI_BYTE, window_), "put"));
  if (ranks_->on_one_host()) return {};  // copied
  return status_of_mpi(MPI_Win_flush_local(rank, window_), "put");
}

Status MpiWindow::finish_epoch() {
  ROTA_RETURN_IF_ERROR(ranks_->failure());
  if (!ranks_->on_one_host()) ROTA_RETURN_IF_ERROR(ranks_->meet());
  if (const int code = MPI_Win_flush_all(window_); code != MPI_SUCCESS) {
    return ranks_->failed(status_of_mpi(code, "finish_epoch"));
  }
  ROTA_RETURN_IF_ERROR(ranks_->meet());
  return status_of_mpi(MPI_Win_sync(window_), "finish_epoch");
}

Result<std::unique_ptr<CommWindow>> MpiCommunicator::do_make_window(Bytes bytes) {
  auto window = std::make_unique<MpiWindow>(*this);
  ROTA_RETURN_IF_ERROR(window->make(bytes));
  std::vector<int64_t>& sizes = window->sizes();
  sizes.resize(static_cast<size_t>(ranks_));
  std::vector<int64_t> begin;
  for (int64_t r = 0; r <= ranks_; ++r) begin.push_back(r * int64_t{sizeof(int64_t)});
  ROTA_RETURN_IF_ERROR(do_all_gather(std::as_bytes(std::span(&bytes.count, 1)),
                                     {std::as_writable_bytes(std::span(sizes)).data(), begin}));
  return std::unique_ptr<CommWindow>(std::move(window));
}

}  // namespace

Result<std::unique_ptr<MpiRanks>> MpiRanks::start() {
  int already = 0;
  MPI_Initialized(&already);
  if (already != 0) return error(StatusCode::kInternal, "MPI runs already in this process");
  // One thread at a time, whichever: the engine's loop need not be the thread that starts.
  int provided = 0;
  ROTA_RETURN_IF_ERROR(status_of_mpi(
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread"));
  if (provided < MPI_THREAD_SERIALIZED) {
    return error(StatusCode::kUnsupported,
                 "this MPI can be called from its first thread only (level {}); OpenMPI 4.1 from "
                 "any, one at a time",
                 provided);
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  return std::unique_ptr<MpiRanks>(new MpiRanks);
}

MpiRanks::~MpiRanks() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0 && !any_failed) MPI_Finalize();
}

Result<std::unique_ptr<Communicator>> MpiRanks::world(const CommOptions& options) {
  MPI_Comm comm = MPI_COMM_NULL;
  ROTA_RETURN_IF_ERROR(status_of_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup"));
  auto communicator = std::make_unique<MpiCommunicator>(options);
  ROTA_RETURN_IF_ERROR(communicator->make(comm));
  return std::unique_ptr<Communicator>(std::move(communicator));
}

}  // namespace rota
