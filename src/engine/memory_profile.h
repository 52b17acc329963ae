// How much memory the KV cache gets, in pages and tokens: pure arithmetic over what was measured.
//
// Contract: kv bytes = --kv-cache-memory-bytes, or utilization * available - weights - copies -
// workspace. Mapped weights count although the kernel could drop them: a step that waits for the
// disk is no step. Copies that do not fit beside cache and workspace are an error. No more pages
// than max_num_seqs sequences of max_model_len could ever use. Ranks of one host share its memory:
// what they map is the same pages of the file, counted once, what they copy is each one's own, and
// what is left for caches is divided evenly. States of recurrent layers are part of the cache: one
// for each running sequence, in at most half of what one sequence leaves (max_num_seqs is lowered
// to that), then the snapshots, then pages.
//
//   ROTA_ASSIGN_OR_RETURN(KvBudget kv, plan_kv_budget({.spec = model->kv_spec(), ...}));
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "model/model.h"

namespace rota {

struct MemoryProfile {
  const KvSpec* spec = nullptr;
  int ranks_of_host = 1;
  // Of the host: of all of its ranks together.
  int64_t available_bytes = 0;       // before the weights were read
  int64_t weight_bytes = 0;          // of the checkpoint: mapped or locked
  int64_t copied_bytes = 0;          // padded copies beside it: never paged
  std::string copied_because;        // the flags that made them: "--moe-hidden-alignment 256"
  bool weights_can_be_paged = true;  // mapped and not locked: may exceed the memory, with a warning
  int64_t workspace_bytes = 0;
  // Of one rank:
  double memory_utilization = 0.9;
  int64_t kv_cache_memory_bytes = 0;  // 0: from the utilization
  int64_t max_num_seqs = 0;
  int64_t model_max_len = 0;     // what the model was made for
  int64_t wanted_max_len = 0;    // --max-model-len; 0: the model's, lowered to what fits
  int64_t max_chunk_tokens = 0;  // --max-num-batched-tokens
  // Of models with recurrent layers:
  bool prefix_caching = true;     // else there are no snapshots
  int64_t snapshot_interval = 0;  // --mamba-block-size
  int64_t snapshot_bytes = -1;    // --mamba-snapshot-bytes; -1: an eighth of the cache
};

struct KvBudget {
  int64_t pages = 0;
  int64_t bytes = 0;         // of pages and states
  int64_t max_num_seqs = 0;  // as resolved: each needs a slot where there are states
  int64_t slots = 0;         // for states: one a running sequence, and `snapshots`
  int64_t snapshots = 0;
  int64_t tokens = 0;               // of full-length sequences that fit together
  int64_t max_model_len = 0;        // as resolved
  int64_t max_sequence_tokens = 0;  // of one sequence alone, >= max_model_len
  std::string note;                 // why a limit was lowered or weights will be paged; or empty
};

Result<KvBudget> plan_kv_budget(const MemoryProfile& profile);

// What ranks that must schedule alike use, of what each of them has planned: the least of
// everything. spec: of the rank that asks; its bytes may differ from another's.
KvBudget least_budget(const KvSpec& spec, std::span<const KvBudget> planned);

// Which part of the budget the states of recurrent layers take, as a line for people.
std::string describe_states(const KvSpec& spec, const KvBudget& budget);

// Pages that one sequence of `tokens` needs to be computed at all: every block of a full-attention
// group; of a window group the blocks that the window of the last token reaches.
int64_t pages_for_sequence(const KvSpec& spec, int64_t tokens);

// The longest sequence for which pages_for_sequence() <= pages.
int64_t longest_sequence(const KvSpec& spec, int64_t pages);

}  // namespace rota
