#include "moe/experts/group_rows.h"

#include <algorithm>

#include "base/check.h"
#include "moe/experts.h"

namespace rota {

int64_t group_rows_storage(int64_t slots, int64_t local_experts) {
  return 2 * slots + 2 * local_experts + 1;
}

GroupedRows group_rows(const TopK& topk, const ExpertMap& map, std::span<int32_t> storage) {
  const int64_t slots = topk.tokens * topk.k;
  const auto experts = static_cast<size_t>(map.local_count());
  ROTA_DCHECK(static_cast<int64_t>(storage.size()) >= group_rows_storage(slots, map.local_count()),
              "group_rows needs more storage");
  const auto take = [&storage](size_t count) {
    const auto taken = storage.first(count);
    storage = storage.subspan(count);
    return taken;
  };
  GroupedRows out;
  out.token_of_row = take(static_cast<size_t>(slots));
  out.row_of_slot = take(static_cast<size_t>(slots));
  out.active = take(experts);
  out.first_row = take(experts + 1);

  // Counting sort. first_row[e + 1] counts, then becomes the running end of expert e's rows.
  std::fill(out.first_row.begin(), out.first_row.end(), 0);
  for (int64_t slot = 0; slot < slots; ++slot) {
    if (const auto local = map.local(topk.ids[slot]))
      ++out.first_row[static_cast<size_t>(*local) + 1];
  }
  size_t active = 0;
  for (size_t e = 0; e < experts; ++e) {
    if (out.first_row[e + 1] > 0) out.active[active++] = static_cast<int32_t>(e);
    out.first_row[e + 1] += out.first_row[e];
  }
  out.active = out.active.first(active);
  out.token_of_row = out.token_of_row.first(static_cast<size_t>(out.first_row[experts]));
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

  std::sort(out.active.begin(), out.active.end(), [&out](int32_t a, int32_t b) {
    const int64_t rows_a = out.count(a), rows_b = out.count(b);
    return rows_a != rows_b ? rows_a > rows_b : a < b;
  });
  return out;
}

}  // namespace rota
