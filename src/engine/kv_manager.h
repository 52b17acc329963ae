// Which pages of the KV cache belong to which sequence, and which of them a new sequence may share.
//
// Contract: a sequence's block tables (one a KvGroup) name a page for every block that its next
// tokens will read or write; blocks behind a window are given back. A block that is full becomes
// part of the prefix cache when its step is done (commit), and equal blocks of several sequences
// become one. Pages of sequences that are gone stay findable until somebody needs the room.
//
// Where the model has recurrent layers (KvSpec::state) a running sequence also has a slot, whose
// state is that of its last computed token. A prefix can then be shared only where a snapshot of
// the state was taken: when a step ends at the end of the prompt's last whole block or at a
// multiple of the interval (next_snapshot; the scheduler ends chunks there). Snapshots lie in the
// slots that no running sequence needs; the one that was not used for longest is overwritten first.
//
//   int64_t computed = kv.begin(sequence, tokens, salt, ReadCache::kYes);   // tokens found
//   int64_t room = kv.extend(sequence, computed, wanted);                   // 0: no page left
//   ... a step computes `room` tokens ...
//   kv.commit(sequence, tokens, computed + room);
//   kv.release(sequence);
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
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
  int32_t state_slot = -1;      // its own, from the first extend() on
  int32_t snapshot_slot = -1;   // whose state the first extend() copies into its own
  int64_t prompt_snapshot = 0;  // tokens up to the end of the prompt's last whole block

  bool holds_anything() const { return !tables.empty(); }
};

enum class ReadCache { kNo, kYes };

// For a model with recurrent layers.
struct StateSlots {
  int64_t slots = 0;              // one for each running sequence, the others for snapshots
  int64_t snapshot_interval = 0;  // tokens, a multiple of 64; 0: none but the prompt's last
  std::function<void(int32_t from, int32_t to)> copy;  // the state of one slot into another
};

class KvManager {
 public:
  KvManager(const KvSpec& spec, int64_t pages, bool prefix_caching, StateSlots states = {});

  // Gives an empty sequence the pages of the longest known prefix of `tokens` that leaves at least
  // one token to compute; returns its length, a multiple of 64. expected_tokens: how long the
  // sequence may become (tables are reserved for it). prompt_tokens: how many of `tokens` are the
  // prompt's, of which a snapshot is taken.
  int64_t begin(SequenceKv& sequence, std::span<const int32_t> tokens, std::string_view salt,
                ReadCache read, int64_t expected_tokens, int64_t prompt_tokens = 0);

  // Makes room for positions [computed, computed + tokens) and gives back what the window has
  // passed. Returns for how many of the tokens there is room now.
  int64_t extend(SequenceKv& sequence, int64_t computed, int64_t tokens);

  // Pages that extend(sequence, computed, tokens) would take.
  int64_t pages_to_extend(const SequenceKv& sequence, int64_t computed, int64_t tokens) const;

  // The first position beyond `computed` at which a step should end, so that a snapshot can be
  // taken; kNever without states or prefix cache.
  int64_t next_snapshot(const SequenceKv& sequence, int64_t computed) const;
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  // `tokens` are those of the sequence, of which the first `computed` have keys and values now.
  void commit(SequenceKv& sequence, std::span<const int32_t> tokens, int64_t computed);

  void release(SequenceKv& sequence);

  int64_t pages() const { return pool_.pages(); }
  int64_t used_pages() const { return pool_.used(); }
  int64_t available_pages() const { return pool_.available(); }
  int64_t remembered_pages() const { return pool_.idle(); }
  // Sequences that can run at once, as far as slots go.
  int64_t max_sequences() const { return has_states() ? slots_.pages() : kNever; }
  int64_t used_slots() const { return slots_.used(); }
  int64_t snapshots() const { return slots_.idle(); }  // that no starting sequence holds

 private:
  int64_t groups() const { return static_cast<int64_t>(spec_.groups.size()); }
  bool has_states() const { return !spec_.state.layers.empty(); }
  // The tree knows snapshots as the pages of one more group, numbered behind the real ones.
  int64_t snapshot_group() const { return groups(); }
  int32_t page_of_slot(int32_t slot) const { return static_cast<int32_t>(pool_.pages()) + slot; }
  int32_t slot_of_page(int32_t page) const { return page - static_cast<int32_t>(pool_.pages()); }
  const KvGroup& group(int64_t index) const { return spec_.groups[static_cast<size_t>(index)]; }
  std::vector<int32_t>& table(SequenceKv& sequence, int64_t group) const {
    return sequence.tables[static_cast<size_t>(group)];
  }
  int64_t usable_prefix_blocks(std::span<const int32_t> path) const;
  void share_prefix(SequenceKv& sequence, std::span<const int32_t> path);
  void commit_block(SequenceKv& sequence, int64_t block);
  void give_back_behind_window(SequenceKv& sequence, int64_t group_index, int64_t position);
  void take_state_slot(SequenceKv& sequence);
  void take_snapshot(const SequenceKv& sequence);
  void forget_snapshot_of(int32_t node);

  KvSpec spec_;
  bool prefix_caching_;
  StateSlots states_;
  PrefixTree tree_;
  BlockPool pool_;
  BlockPool slots_;
  std::vector<int32_t> path_;  // scratch of begin()
};

}  // namespace rota
