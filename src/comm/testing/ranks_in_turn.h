// For tests: the ranks of a model in one process, one after the other. Each reduction adds the
// rank's share to those of the ranks before it, so the last rank ends up with the sums. In a second
// round of turns every rank gets them.
//
//   RanksInTurn ranks(4);
//   for (int rank = 0; rank < 4; ++rank) {
//     ranks.begin(rank);
//     run(ranks);        // any number of reductions, the same ones in every turn
//   }
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "comm/communicator.h"

namespace rota::testing {

class RanksInTurn final : public Communicator {
 public:
  explicit RanksInTurn(int ranks) : ranks_(ranks) {}
  int ranks() const override { return ranks_; }
  int rank() const override { return rank_; }

  void begin(int rank) {
    summed_ = summed_ || (rank == 0 && rank_ == ranks_ - 1);
    ROTA_CHECK(rank == (rank_ + 1) % ranks_, "ranks take their turns in order");
    rank_ = rank;
    calls_ = 0;
  }

 private:
  Status do_sum(MatrixView<float> rows) override {
    if (rank_ == 0 && !summed_) sums_.emplace_back();
    ROTA_CHECK(calls_ < sums_.size(), "every rank reduces as often as the first");
    std::vector<float>& sum = sums_[calls_++];
    const auto width = static_cast<size_t>(rows.width().logical());
    sum.resize(static_cast<size_t>(rows.rows()) * width);
    for (int64_t r = 0; r < rows.rows(); ++r) {
      const std::span<float> row = rows.row(r);
      const std::span<float> total = std::span(sum).subspan(static_cast<size_t>(r) * width, width);
      for (size_t i = 0; i < width && !summed_; ++i) total[i] += row[i];
      std::copy(total.begin(), total.end(), row.begin());
    }
    return {};
  }

  // Whatever needs the others at once is not for ranks in turn.
  static Status refuse() {
    return error(StatusCode::kUnsupported, "ranks in turn reduce, and nothing else: LoopbackRanks");
  }
  Status do_all_gather(std::span<const std::byte>, const ReceivedPieces&) override {
    return refuse();
  }
  Status do_start(const SentPieces&, const ReceivedPieces&) override { return refuse(); }
  bool do_progress() override { return true; }
  Status do_finish() override { return refuse(); }
  Result<std::unique_ptr<CommWindow>> do_make_window(Bytes) override { return refuse(); }
  Status do_barrier() override { return refuse(); }
  Result<std::unique_ptr<Communicator>> do_split(int) override { return refuse(); }

  int ranks_;
  int rank_ = -1;
  bool summed_ = false;                   // the second round
  size_t calls_ = 0;                      // reductions of this rank's turn
  std::vector<std::vector<float>> sums_;  // of each reduction, so far
};

}  // namespace rota::testing
