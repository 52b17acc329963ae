#include "engine/memory_profile.h"

#include <algorithm>

#include "engine/format_bytes.h"
#include "kernels/attention.h"

namespace rota {
namespace {

int64_t blocks_for(int64_t tokens) { return (tokens + kKvBlockTokens - 1) / kKvBlockTokens; }

// Mapped weights that exceed the memory leave this part of it to the KV cache: steps wait for the
// disk then whatever the cache does.
constexpr double kShareWhereWeightsArePaged = 0.1;

// Of the cache's bytes, unless --mamba-snapshot-bytes says otherwise.
constexpr int64_t kPartForSnapshots = 8;

// What --memory-utilization leaves for the KV cache of a rank; may be negative.
int64_t bytes_for_kv(const MemoryProfile& profile, std::string& note) {
  if (profile.kv_cache_memory_bytes > 0) return profile.kv_cache_memory_bytes;
  const double usable = profile.memory_utilization * static_cast<double>(profile.available_bytes);
  const int64_t beside_weights =
      static_cast<int64_t>(usable) - profile.copied_bytes - profile.workspace_bytes;
  const int64_t left = beside_weights - profile.weight_bytes;
  const auto share = static_cast<int64_t>(kShareWhereWeightsArePaged * usable);
  if (left >= share || !profile.weights_can_be_paged) return left / profile.ranks_of_host;
  note = fmt::format(
      "the weights ({}) and the KV cache do not fit into {} of memory together: steps will wait "
      "for the disk",
      format_bytes(profile.weight_bytes), format_bytes(profile.available_bytes));
  return share / profile.ranks_of_host;
}

// Copies are memory of our own: the kernel cannot drop them as it drops mapped weights.
Status check_copies(const MemoryProfile& profile, int64_t kv_bytes_of_rank) {
  const int64_t kv_bytes = kv_bytes_of_rank * profile.ranks_of_host;
  const int64_t taken =
      profile.copied_bytes + profile.workspace_bytes + std::max<int64_t>(kv_bytes, 0);
  if (profile.copied_bytes == 0 || taken <= profile.available_bytes) return {};
  return error(
      StatusCode::kResourceExhausted,
      "the padded copies of the experts take {}, made because of {}; with a KV cache of {} and a "
      "workspace of {} they do not fit into the {} of memory available. Leave {} out, or give the "
      "cache less with --kv-cache-memory-bytes.",
      format_bytes(profile.copied_bytes), profile.copied_because,
      format_bytes(std::max<int64_t>(kv_bytes, 0)), format_bytes(profile.workspace_bytes),
      format_bytes(profile.available_bytes), profile.copied_because);
}

int64_t sequence_bytes(const MemoryProfile& profile, int64_t tokens) {
  return pages_for_sequence(*profile.spec, tokens) * profile.spec->page_bytes.count +
         profile.spec->state.slot_bytes().count;
}

std::string where_memory_goes(const MemoryProfile& profile) {
  if (profile.kv_cache_memory_bytes > 0) {
    return fmt::format("--kv-cache-memory-bytes {}", profile.kv_cache_memory_bytes);
  }
  std::string where = fmt::format(
      "{} of memory available, --memory-utilization {}, weights {}, copies {}, workspace {}",
      format_bytes(profile.available_bytes), profile.memory_utilization,
      format_bytes(profile.weight_bytes), format_bytes(profile.copied_bytes),
      format_bytes(profile.workspace_bytes));
  if (profile.ranks_of_host > 1) {
    where += fmt::format(", divided among the {} ranks of this host", profile.ranks_of_host);
  }
  return where;
}

Status too_small(const MemoryProfile& profile, int64_t bytes, int64_t fits, int64_t length) {
  const int64_t needed = sequence_bytes(profile, length);
  const std::string found = fmt::format(
      "the KV cache has no room for one sequence of {} tokens: that takes {} bytes ({}), and {} "
      "are left ({})",
      length, needed, format_bytes(needed), format_bytes(std::max<int64_t>(bytes, 0)),
      where_memory_goes(profile));
  const std::string more =
      fmt::format("more memory: --kv-cache-memory-bytes {} or --memory-utilization", needed);
  if (fits > 0) {
    return error(StatusCode::kResourceExhausted, "{}. Give --max-model-len {} or less, or {}.",
                 found, fits, more);
  }
  return error(StatusCode::kResourceExhausted,
               "{}. Even the shortest cache, of {} tokens, takes {} bytes. Give {}.", found,
               kKvBlockTokens, sequence_bytes(profile, kKvBlockTokens), more);
}

void append_note(std::string& note, const std::string& more) {
  if (!note.empty()) note += "; ";
  note += more;
}

// Bytes of the cache's that snapshots may take.
int64_t snapshot_budget(const MemoryProfile& profile, int64_t bytes) {
  if (!profile.prefix_caching) return 0;
  return profile.snapshot_bytes >= 0 ? profile.snapshot_bytes : bytes / kPartForSnapshots;
}

// Snapshots that sequences of the longest kind could ever take.
int64_t useful_snapshots(const MemoryProfile& profile, const KvBudget& budget) {
  const int64_t regular =
      profile.snapshot_interval > 0 ? budget.max_model_len / profile.snapshot_interval : 0;
  return budget.max_num_seqs * (regular + 1);
}

// Shares the cache's bytes out between states and pages; returns what is left for pages.
int64_t plan_slots(const MemoryProfile& profile, int64_t bytes, KvBudget& budget) {
  budget.max_num_seqs = profile.max_num_seqs;
  const int64_t slot = profile.spec->state.slot_bytes().count;
  if (slot == 0) return bytes;
  const int64_t one = sequence_bytes(profile, std::max(profile.wanted_max_len, kKvBlockTokens));
  const int64_t spare = std::max<int64_t>(bytes - one, 0);
  budget.max_num_seqs = std::min(profile.max_num_seqs, 1 + spare / 2 / slot);
  const int64_t beside = spare - (budget.max_num_seqs - 1) * slot;
  const int64_t wanted = snapshot_budget(profile, std::max<int64_t>(bytes, 0)) / slot;
  budget.snapshots = std::min(wanted, beside / slot);
  if (budget.max_num_seqs < profile.max_num_seqs) {
    append_note(budget.note,
                fmt::format("max_num_seqs lowered from {} to {}: each takes {} for the state of "
                            "the recurrent layers; give --kv-cache-memory-bytes for more",
                            profile.max_num_seqs, budget.max_num_seqs, format_bytes(slot)));
  }
  if (profile.snapshot_bytes >= 0 && budget.snapshots < wanted) {
    append_note(budget.note, fmt::format("--mamba-snapshot-bytes: there is room for {} snapshots "
                                         "of {}",
                                         budget.snapshots, wanted));
  }
  return bytes - (budget.max_num_seqs + budget.snapshots) * slot;
}

// What follows from pages, sequences, snapshots and lengths.
void count_sizes(const KvSpec& spec, KvBudget& budget) {
  budget.slots = spec.state.layers.empty() ? 0 : budget.max_num_seqs + budget.snapshots;
  budget.bytes =
      budget.pages * spec.page_bytes.count + budget.slots * spec.state.slot_bytes().count;
  budget.max_sequence_tokens = longest_sequence(spec, budget.pages);
  const int64_t a_full_one = std::max<int64_t>(pages_for_sequence(spec, budget.max_model_len), 1);
  budget.tokens = budget.pages / a_full_one * budget.max_model_len +
                  std::min(longest_sequence(spec, budget.pages % a_full_one), budget.max_model_len);
}

}  // namespace

int64_t pages_for_sequence(const KvSpec& spec, int64_t tokens) {
  int64_t pages = 0;
  for (const KvGroup& group : spec.groups) {
    const int64_t blocks = blocks_for(tokens);
    // `window` consecutive positions touch at most this many blocks.
    const int64_t reached = (group.window + kKvBlockTokens - 2) / kKvBlockTokens + 1;
    pages += group.window == 0 ? blocks : std::min(blocks, reached);
  }
  return pages;
}

std::string describe_states(const KvSpec& spec, const KvBudget& budget) {
  const int64_t slot = spec.state.slot_bytes().count;
  return fmt::format(
      "{} bytes a sequence in {} recurrent layers: {} for {} sequences, {} for {} snapshots", slot,
      spec.state.layers.size(), format_bytes(budget.max_num_seqs * slot), budget.max_num_seqs,
      format_bytes(budget.snapshots * slot), budget.snapshots);
}

int64_t longest_sequence(const KvSpec& spec, int64_t pages) {
  // Blocks only: pages_for_sequence() does not shrink as a sequence grows. Windows alone never
  // grow, so the search ends at a length beyond all models.
  int64_t fits = 0;
  int64_t too_long = (int64_t{1} << 40) / kKvBlockTokens;
  while (too_long - fits > 1) {
    const int64_t blocks = fits + (too_long - fits) / 2;
    (pages_for_sequence(spec, blocks * kKvBlockTokens) <= pages ? fits : too_long) = blocks;
  }
  return fits * kKvBlockTokens;
}

Result<KvBudget> plan_kv_budget(const MemoryProfile& profile) {
  const KvSpec& spec = *profile.spec;
  KvBudget budget;
  const int64_t bytes = bytes_for_kv(profile, budget.note);
  ROTA_RETURN_IF_ERROR(check_copies(profile, bytes));
  const int64_t bytes_for_pages = plan_slots(profile, bytes, budget);
  // A model cut down to recurrent layers has pages of no size.
  const int64_t page_bytes = std::max<int64_t>(spec.page_bytes.count, 1);
  const int64_t affordable = std::max<int64_t>(bytes_for_pages, 0) / page_bytes;
  const int64_t fits = longest_sequence(spec, affordable);

  budget.max_model_len =
      profile.wanted_max_len > 0 ? profile.wanted_max_len : profile.model_max_len;
  if (budget.max_model_len > fits) {
    if (profile.wanted_max_len > 0 || fits < kKvBlockTokens) {
      return too_small(profile, bytes, fits, budget.max_model_len);
    }
    append_note(budget.note,
                fmt::format("max_model_len lowered from {} to {}, which is what fits; give "
                            "--kv-cache-memory-bytes for more",
                            budget.max_model_len, fits));
    budget.max_model_len = fits;
  }
  // A step's chunk lies in the window groups as a whole before the window moves on.
  const int64_t chunk_pages = blocks_for(profile.max_chunk_tokens) + 1;
  const int64_t useful = budget.max_num_seqs * pages_for_sequence(spec, budget.max_model_len) +
                         chunk_pages * static_cast<int64_t>(spec.groups.size());
  const int64_t pages_in_int32 = int64_t{1} << 30;
  budget.pages = std::max<int64_t>(std::min({affordable, useful, pages_in_int32}), 1);
  budget.snapshots = std::min(budget.snapshots, useful_snapshots(profile, budget));
  count_sizes(spec, budget);
  return budget;
}

KvBudget least_budget(const KvSpec& spec, std::span<const KvBudget> planned) {
  KvBudget least = planned.front();
  for (const KvBudget& budget : planned) {
    least.pages = std::min(least.pages, budget.pages);
    least.snapshots = std::min(least.snapshots, budget.snapshots);
    least.max_num_seqs = std::min(least.max_num_seqs, budget.max_num_seqs);
    least.max_model_len = std::min(least.max_model_len, budget.max_model_len);
  }
  count_sizes(spec, least);
  return least;
}

}  // namespace rota
