#include "moe/balance_experts.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"

namespace rota {
namespace {

constexpr int32_t kFree = -1;
// As even as anybody could measure: further exchanges are not worth their moves.
constexpr double kEvenEnough = 1.01;
// An exchange that wins less than this part of the mean wins nothing but rounding.
constexpr double kLeastGain = 1e-6;

// How many slots each expert should have: the next copy goes to the one with most tokens a copy.
std::vector<int64_t> wanted_copies(std::span<const int64_t> tokens, int64_t slots, int64_t ranks) {
  std::vector<int64_t> copies(tokens.size(), 1);
  // Whether a copy of `a` has more to do than one of `b`; where neither has anything, has fewer
  // mates.
  const auto busier = [&](size_t a, size_t b) {
    const int64_t of_a = tokens[a] * copies[b], of_b = tokens[b] * copies[a];
    return of_a != of_b ? of_a > of_b : copies[a] < copies[b];
  };
  for (int64_t left = slots - std::ssize(tokens); left > 0; --left) {
    size_t chosen = tokens.size();
    for (size_t e = 0; e < tokens.size(); ++e) {
      if (copies[e] < ranks && (chosen == tokens.size() || busier(e, chosen))) chosen = e;
    }
    ROTA_CHECK(chosen < tokens.size(), "no more slots than each expert on every rank");
    ++copies[chosen];
  }
  return copies;
}

class Arrangement {
 public:
  Arrangement(const ExpertMap& map, const ExpertSlots& now, std::span<const int64_t> tokens)
      : map_(map),
        expert_(now.expert_of_slot().begin(), now.expert_of_slot().end()),
        wanted_(wanted_copies(tokens, map.experts(), map.ranks())),
        slots_(static_cast<size_t>(map.ranks())),
        loads_(slots_.size()),
        held_(slots_.size(), std::vector<bool>(tokens.size())) {
    weight_.reserve(tokens.size());
    for (size_t e = 0; e < tokens.size(); ++e) {
      weight_.push_back(static_cast<double>(tokens[e]) / static_cast<double>(wanted_[e]));
    }
    mean_ = static_cast<double>(std::accumulate(tokens.begin(), tokens.end(), int64_t{0})) /
            static_cast<double>(map.ranks());
    for (int32_t slot = 0; slot < map.experts(); ++slot) {
      slots_[rank_of(slot)].push_back(slot);
      const int32_t expert = std::exchange(at(slot), kFree);
      put(slot, expert);
    }
  }

  std::vector<int32_t> balanced() && {
    take_surplus();
    add_missing();
    exchange();
    return std::move(expert_);
  }

 private:
  // Two slots that trade their experts, and what the fuller of the two ranks has then.
  struct Trade {
    int32_t from = 0;
    int32_t to = 0;
    double fuller = 0;
  };

  int32_t& at(int32_t slot) { return expert_[static_cast<size_t>(slot)]; }
  int32_t at(int32_t slot) const { return expert_[static_cast<size_t>(slot)]; }
  size_t rank_of(int32_t slot) const { return static_cast<size_t>(map_.owner(slot)); }
  double weight(int32_t expert) const { return weight_[static_cast<size_t>(expert)]; }
  bool holds(size_t rank, int32_t expert) const { return held_[rank][static_cast<size_t>(expert)]; }

  void put(int32_t slot, int32_t expert) {
    const size_t rank = rank_of(slot);
    at(slot) = expert;
    held_[rank][static_cast<size_t>(expert)] = true;
    loads_[rank] += weight(expert);
  }
  int32_t take(int32_t slot) {
    const size_t rank = rank_of(slot);
    const int32_t expert = std::exchange(at(slot), kFree);
    held_[rank][static_cast<size_t>(expert)] = false;
    loads_[rank] -= weight(expert);
    return expert;
  }
  std::optional<int32_t> free_slot(size_t rank) const {
    for (const int32_t slot : slots_[rank]) {
      if (at(slot) == kFree) return slot;
    }
    return std::nullopt;
  }

  // Copies that are too many, from the fullest of their ranks.
  void take_surplus() {
    for (size_t e = 0; e < wanted_.size(); ++e) {
      for (int64_t surplus = copies(e) - wanted_[e]; surplus > 0; --surplus) {
        int32_t fullest = kFree;
        for (int32_t slot = 0; slot < map_.experts(); ++slot) {
          if (at(slot) != static_cast<int32_t>(e)) continue;
          if (fullest == kFree || loads_[rank_of(slot)] > loads_[rank_of(fullest)]) fullest = slot;
        }
        take(fullest);
      }
    }
  }
  int64_t copies(size_t e) const {
    return std::count(expert_.begin(), expert_.end(), static_cast<int32_t>(e));
  }

  // Copies that are missing, the heaviest first, each to the emptiest rank that has room and not
  // the expert.
  void add_missing() {
    std::vector<int32_t> missing;
    for (size_t e = 0; e < wanted_.size(); ++e) {
      missing.insert(missing.end(), static_cast<size_t>(wanted_[e] - copies(e)),
                     static_cast<int32_t>(e));
    }
    std::ranges::sort(missing, [this](int32_t a, int32_t b) {
      return weight(a) != weight(b) ? weight(a) > weight(b) : a < b;
    });
    for (const int32_t expert : missing) {
      const std::optional<int32_t> slot = best_room(expert);
      put(slot ? *slot : make_room(expert), expert);
    }
  }
  std::optional<int32_t> best_room(int32_t expert) const {
    std::optional<int32_t> best;
    for (size_t rank = 0; rank < slots_.size(); ++rank) {
      const std::optional<int32_t> slot = free_slot(rank);
      if (!slot || holds(rank, expert)) continue;
      if (!best || loads_[rank] < loads_[rank_of(*best)]) best = slot;
    }
    return best;
  }
  // All ranks that have room hold the expert. One of them takes another expert from a full rank
  // that does not. There is one: sizes of ranks differ by one at most, so it holds somebody that
  // they do not.
  int32_t make_room(int32_t expert) {
    for (size_t room = 0; room < slots_.size(); ++room) {
      const std::optional<int32_t> free = free_slot(room);
      if (!free) continue;
      for (size_t full = 0; full < slots_.size(); ++full) {
        if (holds(full, expert)) continue;
        for (const int32_t slot : slots_[full]) {
          if (holds(room, at(slot))) continue;
          put(*free, take(slot));
          return slot;
        }
      }
    }
    ROTA_CHECK(false, "a full rank holds an expert that one with room does not");
    return kFree;
  }

  // Each trade makes the fullest rank less full, and no other as full as it was: an end comes.
  void exchange() {
    for (;;) {
      const auto fullest =
          static_cast<size_t>(std::max_element(loads_.begin(), loads_.end()) - loads_.begin());
      if (loads_[fullest] <= kEvenEnough * mean_) return;
      const std::optional<Trade> trade = best_trade(fullest);
      if (!trade || trade->fuller > loads_[fullest] - kLeastGain * mean_) return;
      const int32_t heavy = take(trade->from), light = take(trade->to);
      put(trade->from, light);
      put(trade->to, heavy);
    }
  }
  std::optional<Trade> best_trade(size_t fullest) const {
    std::optional<Trade> best;
    for (const int32_t from : slots_[fullest]) {
      for (int32_t to = 0; to < map_.experts(); ++to) {
        const size_t other = rank_of(to);
        const double gain = weight(at(from)) - weight(at(to));
        if (other == fullest || gain <= 0 || holds(other, at(from)) || holds(fullest, at(to))) {
          continue;
        }
        const double fuller = std::max(loads_[fullest] - gain, loads_[other] + gain);
        if (!best || fuller < best->fuller) best = Trade{from, to, fuller};
      }
    }
    return best;
  }

  const ExpertMap& map_;
  std::vector<int32_t> expert_;  // [slots], or kFree
  std::vector<int64_t> wanted_;  // [experts] copies
  std::vector<double> weight_;   // [experts]: tokens of one copy
  double mean_ = 0;
  std::vector<std::vector<int32_t>> slots_;  // of each rank
  std::vector<double> loads_;                // [ranks]
  std::vector<std::vector<bool>> held_;      // [ranks][experts]
};

}  // namespace

ExpertSlots balance_experts(const ExpertMap& map, const ExpertSlots& now,
                            std::span<const int64_t> tokens) {
  ROTA_CHECK(std::ssize(tokens) == now.experts() && map.experts() == now.slots(),
             "tokens of each expert, and the slots of the map");
  Result<ExpertSlots> slots =
      ExpertSlots::make(map, now.experts(), Arrangement(map, now, tokens).balanced());
  ROTA_CHECK(slots.ok(), slots.status().message());
  return std::move(slots).value();
}

std::vector<double> rank_loads(const ExpertMap& map, const ExpertSlots& slots,
                               std::span<const int64_t> tokens) {
  std::vector<double> loads(static_cast<size_t>(map.ranks()));
  for (int64_t slot = 0; slot < slots.slots(); ++slot) {
    const int32_t expert = slots.expert(slot);
    loads[static_cast<size_t>(map.owner(slot))] +=
        static_cast<double>(tokens[static_cast<size_t>(expert)]) /
        static_cast<double>(slots.slots_of(expert).size());
  }
  return loads;
}

double load_imbalance(std::span<const double> loads) {
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  if (sum == 0) return 1;
  return *std::max_element(loads.begin(), loads.end()) * static_cast<double>(loads.size()) / sum;
}

double load_imbalance(const ExpertMap& map, const ExpertSlots& slots,
                      std::span<const int64_t> tokens) {
  return load_imbalance(rank_loads(map, slots, tokens));
}

}  // namespace rota
