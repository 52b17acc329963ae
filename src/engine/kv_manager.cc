#include "engine/kv_manager.h"

#include <algorithm>

#include "base/check.h"

namespace rota {
namespace {

PrefixTree::Block block_of(std::span<const int32_t> tokens, int64_t block) {
  return PrefixTree::Block(tokens.data() + block * kKvBlockTokens,
                           static_cast<size_t>(kKvBlockTokens));
}

int64_t blocks_for(int64_t tokens) { return (tokens + kKvBlockTokens - 1) / kKvBlockTokens; }

}  // namespace

KvManager::KvManager(const KvSpec& spec, int64_t pages, bool prefix_caching)
    : spec_(spec),
      prefix_caching_(prefix_caching),
      tree_(static_cast<int64_t>(spec.groups.size()), pages),
      pool_(pages, [this](int32_t page) { tree_.detach(page); }) {}

int64_t KvManager::begin(SequenceKv& sequence, std::span<const int32_t> tokens,
                         std::string_view salt, ReadCache read, int64_t expected_tokens) {
  ROTA_CHECK(!sequence.holds_anything(), "a sequence begins once");
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
// all blocks of a full-attention group, the blocks that the window reaches of the others.
int64_t KvManager::usable_prefix_blocks(std::span<const int32_t> path) const {
  std::vector<int64_t> run(spec_.groups.size(), 0);  // consecutive pages up to the block
  int64_t usable = 0;
  for (int64_t blocks = 1; blocks <= static_cast<int64_t>(path.size()); ++blocks) {
    bool all = true;
    for (int64_t g = 0; g < groups(); ++g) {
      int64_t& present = run[static_cast<size_t>(g)];
      const bool here = tree_.page(path[static_cast<size_t>(blocks - 1)], g) != PrefixTree::kNone;
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
  int64_t blocks = static_cast<int64_t>(sequence.tables.front().size());
  while (blocks < wanted && pool_.available() >= groups()) {
    for (auto& pages : sequence.tables) pages.push_back(pool_.take());
    ++blocks;
  }
  return std::min(tokens, blocks * kKvBlockTokens - computed);
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
  sequence = SequenceKv{};
}

}  // namespace rota
