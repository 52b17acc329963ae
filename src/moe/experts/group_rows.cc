#include "moe/experts/group_rows.h"

#include <algorithm>

#include "base/check.h"

namespace rota {
namespace {

// Parts of one piece of memory, one behind the other.
class Storage {
 public:
  explicit Storage(std::span<int32_t> memory) : memory_(memory) {}
  std::span<int32_t> take(size_t count) {
    ROTA_DCHECK(memory_.size() >= count, "group_rows needs more storage");
    const auto taken = memory_.first(count);
    memory_ = memory_.subspan(count);
    return taken;
  }

 private:
  std::span<int32_t> memory_;
};

GroupedRows take_parts(std::span<int32_t> memory, size_t slots, size_t experts) {
  Storage storage(memory);
  GroupedRows out;
  out.token_of_row = storage.take(slots);
  out.row_of_slot = storage.take(slots);
  out.active = storage.take(experts);
  out.first_row = storage.take(experts + 1);
  return out;
}

// From counts in first_row[e + 1] to first rows, the active experts and the number of rows.
void lay_out(GroupedRows& out) {
  const size_t experts = out.first_row.size() - 1;
  size_t active = 0;
  for (size_t e = 0; e < experts; ++e) {
    if (out.first_row[e + 1] > 0) out.active[active++] = static_cast<int32_t>(e);
    out.first_row[e + 1] += out.first_row[e];
  }
  out.active = out.active.first(active);
  out.token_of_row = out.token_of_row.first(static_cast<size_t>(out.first_row[experts]));
}

void sort_by_rows(GroupedRows& out) {
  std::sort(out.active.begin(), out.active.end(), [&out](int32_t a, int32_t b) {
    const int64_t rows_a = out.count(a), rows_b = out.count(b);
    return rows_a != rows_b ? rows_a > rows_b : a < b;
  });
}

}  // namespace

int64_t group_rows_storage(int64_t slots, int64_t local_experts) {
  return 2 * slots + 2 * local_experts + 1;
}

GroupedRows group_rows(const TopK& topk, const ExpertMap& map, std::span<int32_t> storage) {
  const int64_t slots = topk.tokens * topk.k;
  const auto experts = static_cast<size_t>(map.local_count());
  GroupedRows out = take_parts(storage, static_cast<size_t>(slots), experts);
  // Counting sort. first_row[e + 1] counts, then becomes the running end of expert e's rows.
  std::fill(out.first_row.begin(), out.first_row.end(), 0);
  for (int64_t slot = 0; slot < slots; ++slot) {
    if (const auto local = map.local(topk.ids[slot]))
      ++out.first_row[static_cast<size_t>(*local) + 1];
  }
  lay_out(out);
  for (int64_t slot = 0; slot < slots; ++slot) {
    int32_t& row = out.row_of_slot[static_cast<size_t>(slot)];
    row = ExpertsOutput::kNotHere;
    if (const auto local = map.local(topk.ids[slot])) {
      row = out.first_row[static_cast<size_t>(*local)]++;
      out.token_of_row[static_cast<size_t>(row)] = static_cast<int32_t>(slot / topk.k);
    }
  }
  // The starts moved on by one expert: move them back.
  for (size_t e = experts; e > 0; --e) out.first_row[e] = out.first_row[e - 1];
  out.first_row[0] = 0;

  sort_by_rows(out);
  return out;
}

GroupedRows group_rows(const BatchedTokens& batched, std::span<int32_t> storage) {
  const size_t experts = batched.counts.size();
  const auto places = static_cast<size_t>(batched.places);
  GroupedRows out = take_parts(storage, experts * places, experts);
  out.first_row[0] = 0;
  std::copy(batched.counts.begin(), batched.counts.end(), out.first_row.begin() + 1);
  lay_out(out);
  std::fill(out.row_of_slot.begin(), out.row_of_slot.end(), ExpertsOutput::kNotHere);
  for (size_t e = 0; e < experts; ++e) {
    ROTA_DCHECK(batched.counts[e] <= batched.places, "an expert has more tokens than places");
    const auto first = static_cast<size_t>(out.first_row[e]);
    for (size_t i = 0; i < static_cast<size_t>(batched.counts[e]); ++i) {
      out.row_of_slot[e * places + i] = static_cast<int32_t>(first + i);
      out.token_of_row[first + i] = static_cast<int32_t>(e * places + i);
    }
  }
  sort_by_rows(out);
  return out;
}

}  // namespace rota
