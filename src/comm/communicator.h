// The ranks that serve a model together, and what they do together. The only way from a Partial to
// a Reduced (R6).
//
// Contract: all ranks call the same operations in the same order, with shapes that fit each other.
// Sums are added in rank order in float32, whatever arrives first: the same bits on every rank and
// in every run. An operation ends within CommOptions::timeout_seconds; kUnavailable names the ranks
// that did not come, and the communicator is of no more use. With check_collectives every operation
// is first compared over the ranks; a mismatch is kInternal and names both sides. Used by one
// thread at a time. After a shape was seen once, it does not allocate. One rank alone copies, waits
// for nobody, counts nothing and reads no clock.
//
//   Communicator& alone = loopback();
//   ROTA_ASSIGN_OR_RETURN(Reduced<float> sum, ranks.reduce(Partial<float>(rows)));
//
//   ROTA_RETURN_IF_ERROR(ranks.start_exchange(send, receive));
//   compute_something_else();                       // calls ranks.progress() now and then
//   ROTA_RETURN_IF_ERROR(ranks.finish_exchange());
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/status.h"
#include "comm/collective_check.h"
#include "comm/partial.h"
#include "tensor/dtype.h"

namespace rota {

struct CommOptions {
  double timeout_seconds = 60;
  bool check_collectives = false;  // --check-collectives
};

// A piece for each rank, or from each, one after another in one buffer: rank r's is
// [begin[r], begin[r + 1]) of `data`. begin [ranks + 1], in bytes; pieces may be empty.
template <typename Byte>
struct RankPieces {
  Byte* data = nullptr;
  std::span<const int64_t> begin = {};
  std::span<Byte> of(int rank) const {
    const auto r = static_cast<size_t>(rank);
    return {data + begin[r], static_cast<size_t>(begin[r + 1] - begin[r])};
  }
};
using SentPieces = RankPieces<const std::byte>;
using ReceivedPieces = RankPieces<std::byte>;

// Payload that this rank has sent to others so far: what stays on the rank is not counted, nor are
// checks, comparisons, barriers and envelopes. What all_gather gives to each of the others counts
// once for each; reduce is an exchange and an all_gather.
struct CommTraffic {
  int64_t bytes = 0;
  int64_t operations = 0;  // reduce, reduce_scatter, all_gather, exchanges, epochs of windows
  bool operator==(const CommTraffic&) const = default;
};

// Memory of each rank into which all put, one-sided. Puts of an epoch are seen by their target
// after finish_epoch(); until then it must not read what is put there, nor anyone put there anew.
// As soon as a rank has left finish_epoch() it may put for the next epoch: who still reads what the
// last one brought lets the next go to another place. All ranks destroy it together, before the
// communicator.
class CommWindow {
 public:
  virtual ~CommWindow() = default;
  virtual std::span<std::byte> memory() = 0;  // this rank's
  // `bytes` is free again when it returns. kInternal if that rank's memory does not reach so far.
  virtual Status put(int rank, Bytes offset, std::span<const std::byte> bytes) = 0;
  // Everybody's puts of this epoch have arrived. All ranks call it, those that put nothing too.
  virtual Status finish_epoch() = 0;
};

class Communicator {
 public:
  explicit Communicator(const CommOptions& options = {});
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int ranks() const = 0;
  virtual int rank() const = 0;

  // In place, logical columns alone: this rank's share becomes the sum over all ranks.
  Result<Reduced<float>> reduce(Partial<float>&& share);

  // Each rank has a share of all ranks' rows, one rank's after another: rows_of_rank[r] of them are
  // rank r's. `into` [rows_of_rank[rank()], width]: the sum of this rank's own.
  Result<Reduced<float>> reduce_scatter(Partial<float>&& share,
                                        std::span<const int64_t> rows_of_rank,
                                        MatrixView<float> into);

  // What each rank has, on every rank. mine: as long as all.of(rank()), and may be it.
  Status all_gather(std::span<const std::byte> mine, const ReceivedPieces& all);

  // All-to-all of pieces of any length: receive.of(r) becomes rank r's send.of(rank()). Both
  // buffers are the communicator's until it is finished, and no other operation is called.
  Status start_exchange(const SentPieces& send, const ReceivedPieces& receive);
  bool progress();  // lets it go on; true: finish_exchange() will not wait
  Status finish_exchange();

  // Collective; each rank may ask for another size. Fresh memory is zero.
  Result<std::unique_ptr<CommWindow>> make_window(Bytes bytes);

  // All ranks have come here.
  Status barrier();

  // All ranks say the same; else kInternal: what, and both sides. Cheap enough for once a step. At
  // most kMaxCompared values.
  Status compare(std::string_view what, std::span<const int64_t> values);

  // Collective. The ranks that give the same colour, in their order here, as a communicator of
  // their own, with the same options and its own traffic.
  Result<std::unique_ptr<Communicator>> split(int colour);

  CommTraffic traffic() const { return traffic_; }
  // How long operations and windows have kept this rank, waiting for others included. What it
  // computes while an exchange is on its way is not in it, nor are make_window() and split().
  double seconds() const { return seconds_; }
  const CommOptions& options() const { return options_; }

 private:
  class Window;
  class Timer;
  struct Scratch;
  // Every operation begins here: refused while an exchange is on its way, checked if so asked.
  Status begin(const CollectiveCall& call);
  Status check(const CollectiveCall& call);
  // Records of one length, all ranks', one after another.
  Status gather_records(std::span<const std::byte> mine, std::span<std::byte> all);
  void count(int64_t bytes);  // an operation that sends so much to others
  // The sum of what all ranks send here, in rank order. send: a piece of floats for each rank.
  Result<std::span<const float>> exchange_and_sum(std::span<const float> send,
                                                  std::span<const int64_t> begin);

  // In place: exchange_and_sum() of even pieces, all_gather of the sums.
  virtual Status do_sum(MatrixView<float> rows);

  // What a transport brings; all sums, checks and counts are above and the same for each. A piece
  // whose length sender and receiver see differently must not be written past its end. What begin
  // says is read before the call returns.
  virtual Status do_all_gather(std::span<const std::byte> mine, const ReceivedPieces& all) = 0;
  virtual Status do_start(const SentPieces& send, const ReceivedPieces& receive) = 0;
  virtual bool do_progress() = 0;
  virtual Status do_finish() = 0;
  virtual Result<std::unique_ptr<CommWindow>> do_make_window(Bytes bytes) = 0;
  virtual Status do_barrier() = 0;
  virtual Result<std::unique_ptr<Communicator>> do_split(int colour) = 0;

  const CommOptions options_;
  CommTraffic traffic_;
  double seconds_ = 0;
  std::unique_ptr<Scratch> scratch_;  // grows to the largest shape seen
  int64_t sequence_ = 0;              // of the operations
  bool exchanging_ = false;
};

// One rank: what it has is the sum. Stateless, lives for ever.
Communicator& loopback();

}  // namespace rota
