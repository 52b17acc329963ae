#include "engine/rank_messages.h"

#include <algorithm>

namespace rota {
namespace {

void begins(std::span<const int64_t> lengths, std::vector<int64_t>& begin) {
  begin.assign(1, 0);
  for (const int64_t length : lengths) begin.push_back(begin.back() + length);
}

}  // namespace

RankMessages::RankMessages(Communicator& control)
    : control_(&control),
      to_(static_cast<size_t>(control.ranks())),
      bytes_to_(to_.size()),
      received_begin_(to_.size() + 1) {}

void RankMessages::add(int rank, std::string_view frame) {
  const auto r = static_cast<size_t>(rank);
  to_[r].append(frame);
  bytes_to_[r] += static_cast<int64_t>(frame.size());
  total_ += static_cast<int64_t>(frame.size());
}

Status RankMessages::exchange(std::span<const int64_t> bytes_from) {
  begins(bytes_to_, sent_begin_);
  begins(bytes_from, received_begin_);
  sent_.clear();
  for (std::string& frames : to_) {
    const auto bytes = std::as_bytes(std::span(frames));
    sent_.insert(sent_.end(), bytes.begin(), bytes.end());
    frames.clear();
  }
  std::ranges::fill(bytes_to_, 0);
  total_ = 0;
  received_.resize(static_cast<size_t>(received_begin_.back()));
  ROTA_RETURN_IF_ERROR(
      control_->start_exchange({sent_.data(), sent_begin_}, {received_.data(), received_begin_}));
  return control_->finish_exchange();
}

std::string_view RankMessages::from(int rank) const {
  const auto r = static_cast<size_t>(rank);
  const auto length = static_cast<size_t>(received_begin_[r + 1] - received_begin_[r]);
  return {reinterpret_cast<const char*>(received_.data()) + received_begin_[r], length};
}

}  // namespace rota
