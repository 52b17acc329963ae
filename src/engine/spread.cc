#include "engine/spread.h"

#include <algorithm>

#include "base/check.h"
#include "engine/hash.h"
#include "kernels/attention.h"

namespace rota {

Spread::Spread(int groups, int64_t remembered_blocks)
    : groups_(static_cast<size_t>(groups)), capacity_(static_cast<size_t>(remembered_blocks)) {
  ROTA_CHECK(groups >= 1 && remembered_blocks >= 1, "somewhere to go, something to remember");
}

int Spread::place(std::span<const int32_t> prompt, std::string_view salt) {
  const auto tokens = static_cast<int64_t>(prompt.size());
  if (groups_.size() > 1) hash_blocks(prompt, salt);
  const int group = least_cost(tokens);
  for (const uint64_t block : blocks_) remember(block, group);
  groups_[static_cast<size_t>(group)].last_chosen = ++placed_;
  add(group, tokens);
  return group;
}

void Spread::add(int group, int64_t tokens) { groups_[static_cast<size_t>(group)].load += tokens; }

// Whole blocks, as the prefix cache knows them; each hash goes on from the one before it.
void Spread::hash_blocks(std::span<const int32_t> prompt, std::string_view salt) {
  constexpr auto kBlock = static_cast<size_t>(kKvBlockTokens);
  blocks_.clear();
  uint64_t hash = hash_text(salt);
  for (size_t first = 0; first + kBlock <= prompt.size(); first += kBlock) {
    hash = hash_bytes(std::as_bytes(prompt.subspan(first, kBlock)), hash);
    blocks_.push_back(hash);
  }
}

int64_t Spread::known_tokens(int group) const {
  int64_t tokens = 0;
  for (const uint64_t block : blocks_) {
    const auto found = computed_.find(block);
    if (found == computed_.end() || found->second.group != group) break;
    tokens += kKvBlockTokens;
  }
  return tokens;
}

int Spread::least_cost(int64_t prompt_tokens) const {
  int best = 0;
  int64_t best_cost = 0;
  for (int group = 0; group < static_cast<int>(groups_.size()); ++group) {
    const Group& it = groups_[static_cast<size_t>(group)];
    const int64_t cost = it.load + prompt_tokens - known_tokens(group);
    const bool ties = group > 0 && cost == best_cost;
    const bool longer_ago = ties && it.last_chosen < groups_[static_cast<size_t>(best)].last_chosen;
    if (group > 0 && cost >= best_cost && !longer_ago) continue;
    best = group;
    best_cost = cost;
  }
  return best;
}

void Spread::remember(uint64_t block, int group) {
  if (remembered_.size() < capacity_) {
    remembered_.push_back(block);
  } else {
    // Unless it was seen again since: then its place is a later one.
    const auto oldest = computed_.find(remembered_[next_]);
    if (oldest != computed_.end() && oldest->second.slot == next_) computed_.erase(oldest);
    remembered_[next_] = block;
  }
  computed_[block] = {.group = group, .slot = next_};
  next_ = (next_ + 1) % capacity_;
}

}  // namespace rota
