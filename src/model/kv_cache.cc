#include "model/kv_cache.h"

#include "base/checked.h"

namespace rota {

Result<KvCache> KvCache::allocate(const KvSpec& spec, int64_t pages) {
  if (pages < 1) {
    return invalid_argument("KV cache of {} pages: expected at least one; give it more memory",
                            pages);
  }
  const auto bytes = checked_mul(pages, spec.page_bytes.count);
  if (!bytes) {
    return error(StatusCode::kResourceExhausted, "KV cache of {} pages of {} bytes: too large",
                 pages, spec.page_bytes.count);
  }
  auto buffer = Buffer::allocate(static_cast<size_t>(*bytes), Fill::kUnspecified);
  if (!buffer) {
    return buffer.status().with_context(
        fmt::format("KV cache of {} pages, {} bytes", pages, *bytes));
  }
  return KvCache(std::move(buffer).value(), spec, pages);
}

std::vector<KvPlace> kv_places(const KvSpec& spec, int64_t layers) {
  std::vector<KvPlace> places(static_cast<size_t>(layers));
  for (size_t group = 0; group < spec.groups.size(); ++group) {
    const std::vector<int>& members = spec.groups[group].layers;
    for (size_t slot = 0; slot < members.size(); ++slot) {
      places[static_cast<size_t>(members[slot])] = {static_cast<int>(group),
                                                    static_cast<int>(slot)};
    }
  }
  return places;
}

}  // namespace rota
