#include "model/kv_cache.h"

#include <cstring>

#include "base/checked.h"

namespace rota {

namespace {

Result<Buffer> allocate_many(std::string_view what, int64_t count, Bytes each) {
  const auto bytes = checked_mul(count, each.count);
  if (!bytes) {
    return error(StatusCode::kResourceExhausted, "KV cache of {} {} of {} bytes: too large", count,
                 what, each.count);
  }
  auto buffer = Buffer::allocate(static_cast<size_t>(*bytes), Fill::kUnspecified);
  if (buffer) return buffer;
  return buffer.status().with_context(
      fmt::format("KV cache of {} {}, {} bytes", count, what, *bytes));
}

}  // namespace

Result<KvCache> KvCache::allocate(const KvSpec& spec, int64_t pages, int64_t slots) {
  if (pages < 1) {
    return invalid_argument("KV cache of {} pages: expected at least one; give it more memory",
                            pages);
  }
  const bool has_states = !spec.state.layers.empty();
  if (has_states && slots < 1) {
    return invalid_argument(
        "KV cache of {} slots: the model's recurrent layers need one for each sequence", slots);
  }
  KvCache cache;
  ROTA_ASSIGN_OR_RETURN(cache.buffer_, allocate_many("pages", pages, spec.page_bytes));
  cache.layer_bytes_ = spec.layer_bytes;
  cache.page_bytes_ = spec.page_bytes;
  cache.pages_ = pages;
  if (!has_states) return cache;
  ROTA_ASSIGN_OR_RETURN(cache.states_, allocate_many("slots", slots, spec.state.slot_bytes()));
  cache.state_layer_bytes_ = spec.state.layer_bytes;
  cache.slot_bytes_ = spec.state.slot_bytes();
  cache.slots_ = slots;
  return cache;
}

void KvCache::copy_state(int32_t from, int32_t to) const {
  std::memcpy(state(to, 0).data(), state(from, 0).data(), static_cast<size_t>(slot_bytes_.count));
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
