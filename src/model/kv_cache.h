// The memory of the KV cache: one pool of equal pages for all sequences and all groups of layers,
// and one of equal slots for the states of recurrent layers.
//
// A page holds 64 positions of one sequence in every layer of one KvGroup. Which sequence owns
// which page is not decided here: the engine's block manager hands out page numbers in block
// tables. Fresh pages hold anything (NaN in poisoned builds): attention masks by position.
//
//   ROTA_ASSIGN_OR_RETURN(KvCache cache, KvCache::allocate(model->kv_spec(), 512));
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "kernels/attention.h"
#include "model/model.h"
#include "platform/memory.h"

namespace rota {

// Where a layer lies in the pages of its group.
struct KvPlace {
  int group = 0;
  int slot = 0;
};

class KvCache {
 public:
  // kInvalidArgument for pages < 1, or where the model has states for slots < 1; kResourceExhausted
  // says how much was wanted.
  static Result<KvCache> allocate(const KvSpec& spec, int64_t pages, int64_t slots = 0);

  int64_t pages() const { return pages_; }
  int64_t slots() const { return slots_; }
  Bytes bytes() const { return page_bytes_ * pages_ + slot_bytes_ * slots_; }

  // A layer's part of the pages in `block_table`, as the kernels address it.
  KvPages layer_pages(KvPlace place, std::span<const int32_t> block_table) const {
    return {.base = buffer_.data() + (layer_bytes_ * place.slot).count,
            .page_stride = page_bytes_,
            .block_table = block_table};
  }

  // The state of the model's index-th recurrent layer in a slot; cache-line aligned.
  std::span<std::byte> state(int32_t slot, int64_t index) const {
    return {states_.data() + (slot_bytes_ * slot + state_layer_bytes_ * index).count,
            static_cast<size_t>(state_layer_bytes_.count)};
  }
  // A snapshot taken, or gone back to.
  void copy_state(int32_t from, int32_t to) const;

 private:
  KvCache() = default;

  Buffer buffer_;
  Buffer states_;
  Bytes layer_bytes_;
  Bytes page_bytes_;
  Bytes state_layer_bytes_;
  Bytes slot_bytes_;
  int64_t pages_ = 0;
  int64_t slots_ = 0;
};

// The place of each layer [layers] under a spec.
std::vector<KvPlace> kv_places(const KvSpec& spec, int64_t layers);

}  // namespace rota
