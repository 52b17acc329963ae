#include "engine/park.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "platform/clock.h"

namespace rota {
namespace {

std::chrono::microseconds between_looks(int ranks) {
  return std::chrono::microseconds(std::min(1500 * ranks, 20000));
}

// What was started on `ranks`, once it is there.
Status finish_sleeping(Communicator& ranks, double patience_seconds) {
  const Clock::time_point start = Clock::now();
  while (!ranks.progress() && seconds_since(start) < patience_seconds) {
    std::this_thread::sleep_for(between_looks(ranks.ranks()));
  }
  return ranks.finish_exchange();
}

}  // namespace

// A byte from rank 0 to each of the others.
Bell::Bell(Communicator& control)
    : control_(&control),
      sent_(static_cast<size_t>(control.ranks())),
      sent_begin_(static_cast<size_t>(control.ranks()) + 1),
      received_begin_(sent_begin_.size()) {
  const bool first = control.rank() == 0;
  for (size_t rank = 0; rank < sent_.size(); ++rank) {
    sent_begin_[rank + 1] = sent_begin_[rank] + (first && rank > 0 ? 1 : 0);
    received_begin_[rank + 1] = first ? 0 : 1;
  }
}

Status Bell::ring() {
  ROTA_RETURN_IF_ERROR(
      control_->start_exchange({sent_.data(), sent_begin_}, {&received_, received_begin_}));
  return control_->finish_exchange();
}

Status Bell::wait(double patience_seconds) {
  ROTA_RETURN_IF_ERROR(
      control_->start_exchange({sent_.data(), sent_begin_}, {&received_, received_begin_}));
  return finish_sleeping(*control_, patience_seconds);
}

Status wait_for_all(Communicator& ranks, double patience_seconds) {
  std::vector<int64_t> begin(static_cast<size_t>(ranks.ranks()) + 1);
  std::iota(begin.begin(), begin.end(), int64_t{0});
  const std::vector<std::byte> sent(begin.size());
  std::vector<std::byte> received(begin.size());
  ROTA_RETURN_IF_ERROR(ranks.start_exchange({sent.data(), begin}, {received.data(), begin}));
  return finish_sleeping(ranks, patience_seconds);
}

}  // namespace rota
