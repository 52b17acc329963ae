#include "moe/prepare_finalize/rows_home.h"

#include <algorithm>

#include "base/check.h"
#include "moe/prepare_finalize/sum_slots.h"

namespace rota {
namespace {

int64_t max_sent(const PrepareFinalizeSizing& sizing, int64_t max_arrived) {
  return max_arrived * sizing.most_slots();
}

int64_t max_received(const PrepareFinalizeSizing& sizing) {
  return sizing.max_tokens * sizing.config->router.top_k;
}

}  // namespace

RowsHome::RowsHome(const PrepareFinalizeSizing& sizing)
    : sizing_(sizing), wire_(WireRow::home(sizing.plan->combine)) {}

Result<RowsHome> RowsHome::make(const PrepareFinalizeSizing& sizing, int64_t max_arrived) {
  RowsHome home(sizing);
  const auto sent = static_cast<size_t>(max_sent(sizing, max_arrived));
  const auto received = static_cast<size_t>(max_received(sizing));
  const auto row = static_cast<size_t>(home.wire_.bytes());
  const auto ranks = static_cast<size_t>(sizing.ranks);
  ROTA_ASSIGN_OR_RETURN(home.send_, Buffer::allocate(sent * row, Fill::kUnspecified));
  ROTA_ASSIGN_OR_RETURN(home.received_, Buffer::allocate(received * row, Fill::kUnspecified));
  home.send_begin_.resize(ranks + 1);
  home.receive_begin_.resize(ranks + 1);
  home.slot_of_sent_.resize(sent);
  home.at_of_slot_.resize(received);
  home.next_.resize(ranks);
  return home;
}

Bytes RowsHome::bytes(const PrepareFinalizeSizing& sizing, int64_t max_arrived) {
  const int64_t rows = max_sent(sizing, max_arrived) + max_received(sizing);
  return Bytes{WireRow::home(sizing.plan->combine).bytes() +
               static_cast<int64_t>(sizeof(int64_t))} *
         rows;
}

Status RowsHome::bring(const ExpertsOutput& experts, std::span<const int64_t> first_token,
                       const TopK& mine) {
  pack(experts, first_token);
  expect(mine);
  ROTA_RETURN_IF_ERROR(
      sizing_.communicator->start_exchange({.data = send_.data(), .begin = send_begin_},
                                           {.data = received_.data(), .begin = receive_begin_}));
  return sizing_.communicator->finish_exchange();
}

void RowsHome::pack(const ExpertsOutput& experts, std::span<const int64_t> first_token) {
  const int64_t k = sizing_.config->router.top_k;
  int64_t rows = 0;
  for (size_t rank = 0; rank < next_.size(); ++rank) {
    send_begin_[rank] = rows * wire_.bytes();
    for (int64_t slot = first_token[rank] * k; slot < first_token[rank + 1] * k; ++slot) {
      if (experts.row(slot)) slot_of_sent_[static_cast<size_t>(rows++)] = slot;
    }
  }
  send_begin_.back() = rows * wire_.bytes();
  for_blocks(*sizing_.team, rows, [&](int64_t i) {
    wire_.pack(*experts.row(slot_of_sent_[static_cast<size_t>(i)]),
               send_.data() + i * wire_.bytes());
  });
}

void RowsHome::expect(const TopK& mine) {
  std::fill(next_.begin(), next_.end(), 0);
  const auto owner = [&](int64_t slot) {
    return static_cast<size_t>(sizing_.map.owner(mine.ids[slot]));
  };
  const int64_t slots = mine.tokens * mine.k;
  for (int64_t slot = 0; slot < slots; ++slot) next_[owner(slot)] += wire_.bytes();
  receive_begin_[0] = 0;
  for (size_t rank = 0; rank < next_.size(); ++rank) {
    receive_begin_[rank + 1] = receive_begin_[rank] + next_[rank];
    next_[rank] = receive_begin_[rank];
  }
  for (int64_t slot = 0; slot < slots; ++slot) {
    int64_t& next = next_[owner(slot)];
    at_of_slot_[static_cast<size_t>(slot)] = next;
    next += wire_.bytes();
  }
}

void RowsHome::sum(const TopK& mine, MatrixView<float> out) const {
  const auto row_of = [&](int64_t slot) {
    return std::optional(wire_.view(received_.data() + at_of_slot_[static_cast<size_t>(slot)]));
  };
  sum_slots(sizing_, mine, row_of, out);
}

}  // namespace rota
