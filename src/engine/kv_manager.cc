#include "engine/kv_manager.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace rota {
namespace {

PrefixTree::Block block_of(std::span<const int32_t> tokens, int64_t block) {
  return PrefixTree::Block(tokens.data() + block * kKvBlockTokens,
                           static_cast<size_t>(kKvBlockTokens));
}

int64_t blocks_for(int64_t tokens) { return (tokens + kKvBlockTokens - 1) / kKvBlockTokens; }

int64_t slots_for(const KvSpec& spec, const StateSlots& states) {
  return spec.state.layers.empty() ? 0 : states.slots;
}

}  // namespace

KvManager::KvManager(const KvSpec& spec, int64_t pages, bool prefix_caching, StateSlots states)
    : spec_(spec),
      prefix_caching_(prefix_caching),
      states_(std::move(states)),
      tree_(groups() + (has_states() ? 1 : 0), pages + slots_for(spec_, states_)),
      pool_(pages,
            [this](int32_t page) {
              forget_snapshot_of(tree_.node_of(page));
              tree_.detach(page);
            }),
      slots_(slots_for(spec_, states_),
             [this](int32_t slot) { tree_.detach(page_of_slot(slot)); }) {
  ROTA_CHECK(!has_states() || (states_.slots > 0 && states_.copy),
             "recurrent layers need slots and a way to copy them");
  ROTA_CHECK(states_.snapshot_interval % kKvBlockTokens == 0,
             "snapshots are taken at whole blocks");
}

int64_t KvManager::begin(SequenceKv& sequence, std::span<const int32_t> tokens,
                         std::string_view salt, ReadCache read, int64_t expected_tokens,
                         int64_t prompt_tokens) {
  ROTA_CHECK(!sequence.holds_anything(), "a sequence begins once");
  sequence.prompt_snapshot = (prompt_tokens - 1) / kKvBlockTokens * kKvBlockTokens;
  sequence.tables.resize(spec_.groups.size());
  sequence.first_live.assign(spec_.groups.size(), 0);
  for (auto& blocks : sequence.tables) {
    blocks.reserve(static_cast<size_t>(blocks_for(expected_tokens)));
  }
  if (!prefix_caching_) return 0;
  sequence.node = tree_.root(salt);
  if (read == ReadCache::kNo) return 0;

  path_.clear();
  const int64_t most = (static_cast<int64_t>(tokens.size()) - 1) / kKvBlockTokens;
  for (int32_t node = sequence.node; static_cast<int64_t>(path_.size()) < most;) {
    node = tree_.find(node, block_of(tokens, static_cast<int64_t>(path_.size())));
    if (node == PrefixTree::kNone) break;
    path_.push_back(node);
  }
  const int64_t blocks = usable_prefix_blocks(path_);
  share_prefix(sequence, std::span(path_).first(static_cast<size_t>(blocks)));
  return blocks * kKvBlockTokens;
}

// The longest part of a path of nodes after which every group still has what the next token reads:
// all blocks of a full-attention group, the blocks that the window reaches of the others, and the
// state at just this place.
int64_t KvManager::usable_prefix_blocks(std::span<const int32_t> path) const {
  std::vector<int64_t> run(spec_.groups.size(), 0);  // consecutive pages up to the block
  int64_t usable = 0;
  for (int64_t blocks = 1; blocks <= static_cast<int64_t>(path.size()); ++blocks) {
    const int32_t node = path[static_cast<size_t>(blocks - 1)];
    bool all = !has_states() || tree_.page(node, snapshot_group()) != PrefixTree::kNone;
    for (int64_t g = 0; g < groups(); ++g) {
      int64_t& present = run[static_cast<size_t>(g)];
      const bool here = tree_.page(node, g) != PrefixTree::kNone;
      present = here ? present + 1 : 0;
      const int64_t first = KvSpec::first_live_block(group(g), blocks * kKvBlockTokens);
      all = all && present >= blocks - first;
    }
    if (all) usable = blocks;
  }
  return usable;
}

void KvManager::share_prefix(SequenceKv& sequence, std::span<const int32_t> path) {
  const auto blocks = static_cast<int64_t>(path.size());
  for (int64_t g = 0; g < groups(); ++g) {
    const int64_t first = KvSpec::first_live_block(group(g), blocks * kKvBlockTokens);
    sequence.first_live[static_cast<size_t>(g)] = std::min(first, blocks);
    for (int64_t b = 0; b < blocks; ++b) {
      const int32_t page = b < first ? -1 : tree_.page(path[static_cast<size_t>(b)], g);
      if (page >= 0) pool_.add_user(page);
      table(sequence, g).push_back(page);
    }
  }
  sequence.committed_blocks = blocks;
  if (path.empty()) return;
  if (has_states()) {
    sequence.snapshot_slot = slot_of_page(tree_.page(path.back(), snapshot_group()));
    slots_.add_user(sequence.snapshot_slot);
  }
  tree_.pin(path.back());
  tree_.unpin(sequence.node);
  sequence.node = path.back();
}

void KvManager::give_back_behind_window(SequenceKv& sequence, int64_t group_index,
                                        int64_t position) {
  std::vector<int32_t>& blocks = table(sequence, group_index);
  int64_t& first_live = sequence.first_live[static_cast<size_t>(group_index)];
  const int64_t first = std::min(KvSpec::first_live_block(group(group_index), position),
                                 static_cast<int64_t>(blocks.size()));
  for (; first_live < first; ++first_live) {
    int32_t& page = blocks[static_cast<size_t>(first_live)];
    if (page >= 0) pool_.release(page);
    page = -1;
  }
}

int64_t KvManager::pages_to_extend(const SequenceKv& sequence, int64_t computed,
                                   int64_t tokens) const {
  int64_t pages = 0;
  for (const std::vector<int32_t>& blocks : sequence.tables) {
    pages +=
        std::max<int64_t>(0, blocks_for(computed + tokens) - static_cast<int64_t>(blocks.size()));
  }
  return pages;
}

int64_t KvManager::extend(SequenceKv& sequence, int64_t computed, int64_t tokens) {
  for (int64_t g = 0; g < groups(); ++g) give_back_behind_window(sequence, g, computed);
  const int64_t wanted = blocks_for(computed + tokens);
  // Block by block, so that what room there is serves all groups alike.
  int64_t blocks =
      sequence.tables.empty() ? wanted : static_cast<int64_t>(sequence.tables.front().size());
  while (blocks < wanted && pool_.available() >= groups()) {
    for (auto& pages : sequence.tables) pages.push_back(pool_.take());
    ++blocks;
  }
  const int64_t room = std::min(tokens, blocks * kKvBlockTokens - computed);
  if (has_states() && room > 0 && sequence.state_slot < 0) take_state_slot(sequence);
  return room;
}

// Not in begin(), so that a sequence which cannot start yet copies nothing. It holds either its own
// slot or a snapshot before that: there are never more of both than sequences.
void KvManager::take_state_slot(SequenceKv& sequence) {
  const int32_t snapshot = std::exchange(sequence.snapshot_slot, -1);
  sequence.state_slot = slots_.take();
  if (sequence.state_slot < 0) {
    ROTA_CHECK(snapshot >= 0, "more sequences run than there are slots for states");
    // All others are taken by sequences: the snapshot's slot becomes this one's.
    forget_snapshot_of(sequence.node);
    sequence.state_slot = snapshot;
  } else if (snapshot >= 0) {
    states_.copy(snapshot, sequence.state_slot);
    slots_.release(snapshot);
  }
}

int64_t KvManager::next_snapshot(const SequenceKv& sequence, int64_t computed) const {
  if (!has_states() || !prefix_caching_) return kNever;
  const int64_t interval = states_.snapshot_interval;
  const int64_t regular = interval > 0 ? (computed / interval + 1) * interval : kNever;
  return sequence.prompt_snapshot > computed ? std::min(sequence.prompt_snapshot, regular)
                                             : regular;
}

// Of the sequence's last committed block, which is its last computed one.
void KvManager::take_snapshot(const SequenceKv& sequence) {
  if (tree_.page(sequence.node, snapshot_group()) != PrefixTree::kNone) return;
  const int32_t slot = slots_.take();
  if (slot < 0) return;
  states_.copy(sequence.state_slot, slot);
  tree_.attach(sequence.node, snapshot_group(), page_of_slot(slot));
  slots_.keep(slot);
  slots_.release(slot);
}

// A state without the keys and values of its block is of no use.
void KvManager::forget_snapshot_of(int32_t node) {
  if (!has_states()) return;
  const int32_t page = tree_.page(node, snapshot_group());
  if (page == PrefixTree::kNone) return;
  tree_.detach(page);
  slots_.forget(slot_of_page(page));
}

void KvManager::commit(SequenceKv& sequence, std::span<const int32_t> tokens, int64_t computed) {
  if (!prefix_caching_) return;
  while ((sequence.committed_blocks + 1) * kKvBlockTokens <= computed) {
    const int64_t block = sequence.committed_blocks;
    const int32_t node = tree_.find_or_add(sequence.node, block_of(tokens, block));
    tree_.pin(node);
    tree_.unpin(sequence.node);
    sequence.node = node;
    commit_block(sequence, block);
    ++sequence.committed_blocks;
  }
  if (computed > 0 && next_snapshot(sequence, computed - 1) == computed) take_snapshot(sequence);
}

// The block's pages become those of its node; where the node has one already, that one is used and
// ours, which holds the same bits (design section 6), is given back.
void KvManager::commit_block(SequenceKv& sequence, int64_t block) {
  for (int64_t g = 0; g < groups(); ++g) {
    int32_t& page = table(sequence, g)[static_cast<size_t>(block)];
    if (page < 0) continue;
    const int32_t known = tree_.page(sequence.node, g);
    if (known == page) continue;
    if (known == PrefixTree::kNone) {
      tree_.attach(sequence.node, g, page);
      pool_.keep(page);
    } else {
      pool_.add_user(known);
      pool_.release(page);
      page = known;
    }
  }
}

// From the last block to the first, so that the tail of a prefix is forgotten before its head.
void KvManager::release(SequenceKv& sequence) {
  for (auto& pages : sequence.tables) {
    for (auto page = pages.rbegin(); page != pages.rend(); ++page) {
      if (*page >= 0) pool_.release(*page);
    }
  }
  if (sequence.node != PrefixTree::kNone) tree_.unpin(sequence.node);
  for (const int32_t slot : {sequence.state_slot, sequence.snapshot_slot}) {
    if (slot >= 0) slots_.release(slot);
  }
  sequence = SequenceKv{};
}

}  // namespace rota
