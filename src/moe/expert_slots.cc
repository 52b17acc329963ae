#include "moe/expert_slots.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace rota {
namespace {

std::vector<int32_t> counted(int64_t experts) {
  std::vector<int32_t> list(static_cast<size_t>(experts));
  std::iota(list.begin(), list.end(), 0);
  return list;
}

// Slots of each rank.
std::vector<std::vector<int32_t>> slots_of_ranks(const ExpertMap& map) {
  std::vector<std::vector<int32_t>> slots(static_cast<size_t>(map.ranks()));
  for (int32_t slot = 0; slot < map.experts(); ++slot) {
    slots[static_cast<size_t>(map.owner(slot))].push_back(slot);
  }
  return slots;
}

}  // namespace

ExpertSlots::ExpertSlots(int64_t experts, std::vector<int32_t> expert_of_slot)
    : expert_(std::move(expert_of_slot)),
      first_(static_cast<size_t>(experts) + 1),
      slots_(expert_.size()) {
  for (const int32_t expert : expert_) ++first_[static_cast<size_t>(expert) + 1];
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  std::vector<int32_t> next(first_.begin(), first_.end() - 1);
  for (size_t slot = 0; slot < expert_.size(); ++slot) {
    int32_t& at = next[static_cast<size_t>(expert_[slot])];
    slots_[static_cast<size_t>(at++)] = static_cast<int32_t>(slot);
  }
}

ExpertSlots ExpertSlots::one_each(int64_t experts) { return {experts, counted(experts)}; }

Result<ExpertSlots> ExpertSlots::first(const ExpertMap& map, int64_t experts) {
  const int64_t slots = map.experts();
  if (slots < experts || slots > experts * map.ranks()) {
    return invalid_argument(
        "{} redundant experts: {} experts on {} ranks can have from 0 to {}, a copy of each on "
        "every "
        "rank",
        slots - experts, experts, map.ranks(), experts * (map.ranks() - 1));
  }
  std::vector<int32_t> expert = counted(slots);
  std::vector<int> copies(static_cast<size_t>(experts), 1);
  std::vector<std::vector<bool>> here(static_cast<size_t>(map.ranks()),
                                      std::vector<bool>(static_cast<size_t>(experts)));
  for (int64_t slot = 0; slot < experts; ++slot) {
    here[static_cast<size_t>(map.owner(slot))][static_cast<size_t>(slot)] = true;
  }
  for (int64_t slot = experts; slot < slots; ++slot) {
    std::vector<bool>& held = here[static_cast<size_t>(map.owner(slot))];
    size_t chosen = held.size();
    for (size_t e = 0; e < held.size(); ++e) {
      if (!held[e] && (chosen == held.size() || copies[e] < copies[chosen])) chosen = e;
    }
    ROTA_CHECK(chosen < held.size(), "a rank has no more slots than there are experts");
    held[chosen] = true;
    ++copies[chosen];
    expert[static_cast<size_t>(slot)] = static_cast<int32_t>(chosen);
  }
  return ExpertSlots(experts, std::move(expert));
}

Result<ExpertSlots> ExpertSlots::make(const ExpertMap& map, int64_t experts,
                                      std::vector<int32_t> expert_of_slot) {
  if (std::ssize(expert_of_slot) != map.experts()) {
    return invalid_argument("expert slots: {} experts for {} slots", expert_of_slot.size(),
                            map.experts());
  }
  std::vector<bool> somewhere(static_cast<size_t>(experts));
  for (const int32_t expert : expert_of_slot) {
    if (expert < 0 || expert >= experts) {
      return invalid_argument("expert slots: expert {} is none of {}", expert, experts);
    }
    somewhere[static_cast<size_t>(expert)] = true;
  }
  if (const auto lost = std::find(somewhere.begin(), somewhere.end(), false);
      lost != somewhere.end()) {
    return invalid_argument("expert slots: expert {} lies in none", lost - somewhere.begin());
  }
  for (const std::vector<int32_t>& slots : slots_of_ranks(map)) {
    std::vector<bool> here(static_cast<size_t>(experts));
    for (const int32_t slot : slots) {
      const int32_t expert = expert_of_slot[static_cast<size_t>(slot)];
      if (here[static_cast<size_t>(expert)]) {
        return invalid_argument("expert slots: expert {} lies twice on rank {}", expert,
                                map.owner(slot));
      }
      here[static_cast<size_t>(expert)] = true;
    }
  }
  return ExpertSlots(experts, std::move(expert_of_slot));
}

std::span<const int32_t> ExpertSlots::slots_of(int64_t expert) const {
  const auto e = static_cast<size_t>(expert);
  const auto begin = static_cast<size_t>(first_[e]);
  return std::span(slots_).subspan(begin, static_cast<size_t>(first_[e + 1]) - begin);
}

int64_t ExpertSlots::differences(const ExpertSlots& other) const {
  ROTA_CHECK(slots() == other.slots(), "of as many slots");
  int64_t count = 0;
  for (size_t slot = 0; slot < expert_.size(); ++slot) {
    count += expert_[slot] != other.expert_[slot] ? 1 : 0;
  }
  return count;
}

}  // namespace rota
