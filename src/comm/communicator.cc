#include "comm/communicator.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "platform/clock.h"

namespace rota {
namespace {

size_t size(int64_t count) { return static_cast<size_t>(count); }

// Begins of `total` elements cut evenly over the ranks: the first ones get one more.
void cut_evenly(int64_t total, std::span<int64_t> begin) {
  const auto ranks = static_cast<int64_t>(begin.size()) - 1;
  for (int64_t r = 0; r <= ranks; ++r) {
    begin[size(r)] = r * (total / ranks) + std::min(r, total % ranks);
  }
}

// What others get, of pieces that begin there.
int64_t bytes_to_others(std::span<const int64_t> begin, int rank) {
  const auto r = static_cast<size_t>(rank);
  return begin.back() - begin.front() - (begin[r + 1] - begin[r]);
}

template <typename T>
std::span<T> grown(std::vector<T>& scratch, int64_t count) {
  if (scratch.size() < size(count)) scratch.resize(size(count));
  return std::span(scratch).first(size(count));
}

// The logical columns, without gaps; and back.
void pack(MatrixView<const float> rows, std::span<float> packed) {
  for (int64_t r = 0; r < rows.rows(); ++r) {
    std::ranges::copy(rows.row(r), packed.begin() + r * rows.width().logical());
  }
}
void unpack(std::span<const float> packed, MatrixView<float> rows) {
  const int64_t width = rows.width().logical();
  for (int64_t r = 0; r < rows.rows(); ++r) {
    std::ranges::copy(packed.subspan(size(r * width), size(width)), rows.row(r).begin());
  }
}

}  // namespace

struct Communicator::Scratch {
  std::vector<float> packed;      // a share without gaps
  std::vector<float> received;    // everybody's share of this rank's piece; the first: the sum
  std::vector<int64_t> elements;  // where each rank's piece begins, in elements
  std::vector<int64_t> sent, arriving;   // ... in bytes
  std::vector<int64_t> record, records;  // of check()
  std::vector<ValuesRecord> values;      // of compare()
  std::vector<int64_t> record_begin;     // of either
};

// While it lives, its owner is in an operation.
class Communicator::Timer {
 public:
  explicit Timer(Communicator& owner) : owner_(owner.ranks() > 1 ? &owner : nullptr) {
    if (owner_ != nullptr) start_ = Clock::now();
  }
  ~Timer() {
    if (owner_ != nullptr) owner_->seconds_ += seconds_since(start_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  Communicator* owner_;  // none: one rank alone
  Clock::time_point start_;
};

// Checks, counts and times what the transport's window does.
class Communicator::Window final : public CommWindow {
 public:
  Window(Communicator& owner, std::unique_ptr<CommWindow> inner)
      : owner_(&owner), inner_(std::move(inner)) {}

  std::span<std::byte> memory() override { return inner_->memory(); }
  Status put(int rank, Bytes offset, std::span<const std::byte> bytes) override {
    const Timer timer(*owner_);
    if (rank != owner_->rank()) sent_ += static_cast<int64_t>(bytes.size());
    return inner_->put(rank, offset, bytes);
  }
  Status finish_epoch() override {
    const Timer timer(*owner_);
    ROTA_RETURN_IF_ERROR(owner_->begin({.kind = CollectiveKind::kFinishEpoch}));
    owner_->count(std::exchange(sent_, 0));
    return inner_->finish_epoch();
  }

 private:
  Communicator* owner_;
  std::unique_ptr<CommWindow> inner_;
  int64_t sent_ = 0;  // to others, this epoch
};

Communicator::Communicator(const CommOptions& options)
    : options_(options), scratch_(std::make_unique<Scratch>()) {}
Communicator::~Communicator() = default;

Result<Reduced<float>> Communicator::reduce(Partial<float>&& share) {
  const Timer timer(*this);
  const Partial<float> spent = std::move(share);
  const MatrixView<float> rows = spent.share_;
  ROTA_RETURN_IF_ERROR(
      begin({.kind = CollectiveKind::kReduce, .shape = {rows.rows(), rows.width().logical()}}));
  if (ranks() > 1) {
    ROTA_RETURN_IF_ERROR(do_sum(rows));
  }
  return Reduced<float>(rows);
}

// Each rank adds up its piece of the elements, then all gather the pieces.
Status Communicator::do_sum(MatrixView<float> rows) {
  Scratch& scratch = *scratch_;
  const int64_t total = rows.rows() * rows.width().logical();
  const std::span<int64_t> elements = grown(scratch.elements, ranks() + 1);
  cut_evenly(total, elements);
  const std::span<float> packed = grown(scratch.packed, total);
  pack(rows, packed);
  ROTA_ASSIGN_OR_RETURN(const std::span<const float> sum, exchange_and_sum(packed, elements));

  // scratch.sent still says where the pieces begin in bytes.
  const auto sum_bytes = std::as_bytes(sum);
  count(bytes_to_others(scratch.sent, rank()) +
        static_cast<int64_t>(sum_bytes.size()) * (ranks() - 1));
  ROTA_RETURN_IF_ERROR(
      do_all_gather(sum_bytes, {std::as_writable_bytes(packed).data(), scratch.sent}));
  unpack(packed, rows);
  return {};
}

Result<Reduced<float>> Communicator::reduce_scatter(Partial<float>&& share,
                                                    std::span<const int64_t> rows_of_rank,
                                                    MatrixView<float> into) {
  const Timer timer(*this);
  const Partial<float> spent = std::move(share);
  const MatrixView<float> rows = spent.share_;
  const int64_t width = rows.width().logical();
  ROTA_CHECK(rows_of_rank.size() == static_cast<size_t>(ranks()) &&
                 rows_of_rank[static_cast<size_t>(rank())] == into.rows() &&
                 into.width().logical() == width,
             "every rank has rows, and `into` takes this one's");
  if (ranks() == 1) {
    for (int64_t r = 0; r < rows.rows(); ++r) std::ranges::copy(rows.row(r), into.row(r).begin());
    return Reduced<float>(into);
  }
  Scratch& scratch = *scratch_;
  const std::span<int64_t> begins = grown(scratch.elements, ranks() + 1);
  begins[0] = 0;
  for (size_t r = 0; r < rows_of_rank.size(); ++r) begins[r + 1] = begins[r] + rows_of_rank[r];
  ROTA_CHECK(begins.back() == rows.rows(), "the share has the rows of all ranks");
  ROTA_RETURN_IF_ERROR(begin(
      {.kind = CollectiveKind::kReduceScatter, .shape = {rows.rows(), width}, .received = begins}));

  for (int64_t& element : begins) element *= width;
  const std::span<float> packed = grown(scratch.packed, rows.rows() * width);
  pack(rows, packed);
  ROTA_ASSIGN_OR_RETURN(const std::span<const float> sum, exchange_and_sum(packed, begins));
  count(bytes_to_others(scratch.sent, rank()));
  unpack(sum, into);
  return Reduced<float>(into);
}

Result<std::span<const float>> Communicator::exchange_and_sum(std::span<const float> send,
                                                              std::span<const int64_t> begin) {
  Scratch& scratch = *scratch_;
  const auto mine = static_cast<size_t>(rank());
  const int64_t length = begin[mine + 1] - begin[mine];
  const std::span<int64_t> sent = grown(scratch.sent, ranks() + 1);
  const std::span<int64_t> arriving = grown(scratch.arriving, ranks() + 1);
  for (size_t r = 0; r < begin.size(); ++r) {
    sent[r] = begin[r] * int64_t{sizeof(float)};
    arriving[r] = static_cast<int64_t>(r) * length * int64_t{sizeof(float)};
  }
  const std::span<float> received = grown(scratch.received, ranks() * length);
  ROTA_RETURN_IF_ERROR(do_start({std::as_bytes(send).data(), sent},
                                {std::as_writable_bytes(received).data(), arriving}));
  ROTA_RETURN_IF_ERROR(do_finish());

  const std::span<float> sum = received.first(size(length));
  for (int64_t r = 1; r < ranks(); ++r) {
    const std::span<const float> share = received.subspan(size(r * length), size(length));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += share[i];
  }
  return std::span<const float>(sum);
}

Status Communicator::all_gather(std::span<const std::byte> mine, const ReceivedPieces& all) {
  const Timer timer(*this);
  ROTA_CHECK(
      all.begin.size() == static_cast<size_t>(ranks()) + 1 && all.of(rank()).size() == mine.size(),
      "all_gather: a place for every rank, this one's as long as what it has");
  ROTA_RETURN_IF_ERROR(begin({.kind = CollectiveKind::kAllGather, .received = all.begin}));
  count(static_cast<int64_t>(mine.size()) * (ranks() - 1));
  return do_all_gather(mine, all);
}

Status Communicator::start_exchange(const SentPieces& send, const ReceivedPieces& receive) {
  const Timer timer(*this);
  const size_t begins = static_cast<size_t>(ranks()) + 1;
  ROTA_CHECK(send.begin.size() == begins && receive.begin.size() == begins,
             "exchange: a piece for every rank and from every rank");
  ROTA_RETURN_IF_ERROR(
      begin({.kind = CollectiveKind::kExchange, .sent = send.begin, .received = receive.begin}));
  count(bytes_to_others(send.begin, rank()));
  ROTA_RETURN_IF_ERROR(do_start(send, receive));
  if (ranks() > 1) exchanging_ = true;
  return {};
}

bool Communicator::progress() {
  const Timer timer(*this);
  return do_progress();
}

Status Communicator::finish_exchange() {
  const Timer timer(*this);
  if (ranks() > 1)
    ROTA_CHECK(std::exchange(exchanging_, false), "finish_exchange: none was started");
  return do_finish();
}

Result<std::unique_ptr<CommWindow>> Communicator::make_window(Bytes bytes) {
  ROTA_RETURN_IF_ERROR(begin({.kind = CollectiveKind::kMakeWindow}));
  ROTA_ASSIGN_OR_RETURN(std::unique_ptr<CommWindow> inner, do_make_window(bytes));
  return std::unique_ptr<CommWindow>(std::make_unique<Window>(*this, std::move(inner)));
}

Status Communicator::barrier() {
  const Timer timer(*this);
  ROTA_RETURN_IF_ERROR(begin({.kind = CollectiveKind::kBarrier}));
  return do_barrier();
}

Status Communicator::compare(std::string_view what, std::span<const int64_t> values) {
  if (ranks() == 1) return {};
  const Timer timer(*this);
  ROTA_RETURN_IF_ERROR(begin({.kind = CollectiveKind::kCompare}));
  const ValuesRecord mine = make_values_record(what, values);
  const std::span<ValuesRecord> all = grown(scratch_->values, ranks());
  ROTA_RETURN_IF_ERROR(
      gather_records(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(all)));
  return check_values_records(all);
}

Result<std::unique_ptr<Communicator>> Communicator::split(int colour) {
  ROTA_RETURN_IF_ERROR(begin({.kind = CollectiveKind::kSplit}));
  return do_split(colour);
}

Status Communicator::begin(const CollectiveCall& call) {
  if (ranks() == 1) return {};
  if (exchanging_) {
    return error(StatusCode::kInternal, "{}: an exchange is on its way, finish_exchange() first",
                 to_string(call.kind));
  }
  ++sequence_;
  return options_.check_collectives ? check(call) : Status();
}

Status Communicator::check(const CollectiveCall& call) {
  const int64_t length = call_record_size(ranks());
  const std::span<int64_t> mine = grown(scratch_->record, length);
  const std::span<int64_t> all = grown(scratch_->records, length * ranks());
  write_call_record(call, sequence_, mine);
  ROTA_RETURN_IF_ERROR(gather_records(std::as_bytes(mine), std::as_writable_bytes(all)));
  return check_call_records(all, ranks());
}

Status Communicator::gather_records(std::span<const std::byte> mine, std::span<std::byte> all) {
  const std::span<int64_t> begin = grown(scratch_->record_begin, ranks() + 1);
  for (size_t r = 0; r < begin.size(); ++r) begin[r] = static_cast<int64_t>(r * mine.size());
  return do_all_gather(mine, {all.data(), begin});
}

void Communicator::count(int64_t bytes) {
  if (ranks() == 1) return;
  traffic_.bytes += bytes;
  ++traffic_.operations;
}

}  // namespace rota
