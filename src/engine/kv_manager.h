// Which pages of the KV cache belong to which sequence, and which of them a new sequence may share.
//
// Contract: a sequence's block tables (one a KvGroup) name a page for every block that its next
// tokens will read or write; blocks behind a window are given back. A block that is full becomes
// part of the prefix cache when its step is done (commit), and equal blocks of several sequences
// become one. Pages of sequences that are gone stay findable until somebody needs the room.
//
//   int64_t computed = kv.begin(sequence, tokens, salt, ReadCache::kYes);   // tokens found
//   int64_t room = kv.extend(sequence, computed, wanted);                   // 0: no page left
//   ... a step computes `room` tokens ...
//   kv.commit(sequence, tokens, computed + room);
//   kv.release(sequence);
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/block_pool.h"
#include "engine/prefix_tree.h"
#include "model/model.h"

namespace rota {

// A sequence's share of the cache.
struct SequenceKv {
  std::vector<std::vector<int32_t>> tables;  // [groups][blocks]; -1: behind the window
  std::vector<int64_t> first_live;           // [groups]: blocks before it were given back
  int32_t node = PrefixTree::kNone;          // of the last committed block; pinned
  int64_t committed_blocks = 0;

  bool holds_anything() const { return !tables.empty(); }
};

enum class ReadCache { kNo, kYes };

class KvManager {
 public:
  KvManager(const KvSpec& spec, int64_t pages, bool prefix_caching);

  // Gives an empty sequence the pages of the longest known prefix of `tokens` that leaves at least
  // one token to compute; returns its length, a multiple of 64. expected_tokens: how long the
  // sequence may become (tables are reserved for it).
  int64_t begin(SequenceKv& sequence, std::span<const int32_t> tokens, std::string_view salt,
                ReadCache read, int64_t expected_tokens);

  // Makes room for positions [computed, computed + tokens) and gives back what the window has
  // passed. Returns for how many of the tokens there is room now.
  int64_t extend(SequenceKv& sequence, int64_t computed, int64_t tokens);

  // Pages that extend(sequence, computed, tokens) would take.
  int64_t pages_to_extend(const SequenceKv& sequence, int64_t computed, int64_t tokens) const;

  // `tokens` are those of the sequence, of which the first `computed` have keys and values now.
  void commit(SequenceKv& sequence, std::span<const int32_t> tokens, int64_t computed);

  void release(SequenceKv& sequence);

  int64_t pages() const { return pool_.pages(); }
  int64_t used_pages() const { return pool_.used(); }
  int64_t available_pages() const { return pool_.available(); }
  int64_t remembered_pages() const { return pool_.idle(); }

 private:
  int64_t groups() const { return static_cast<int64_t>(spec_.groups.size()); }
  const KvGroup& group(int64_t index) const { return spec_.groups[static_cast<size_t>(index)]; }
  std::vector<int32_t>& table(SequenceKv& sequence, int64_t group) const {
    return sequence.tables[static_cast<size_t>(group)];
  }
  int64_t usable_prefix_blocks(std::span<const int32_t> path) const;
  void share_prefix(SequenceKv& sequence, std::span<const int32_t> path);
  void commit_block(SequenceKv& sequence, int64_t block);
  void give_back_behind_window(SequenceKv& sequence, int64_t group_index, int64_t position);

  KvSpec spec_;
  bool prefix_caching_;
  PrefixTree tree_;
  BlockPool pool_;
  std::vector<int32_t> path_;  // scratch of begin()
};

}  // namespace rota
