// The order inside a KV page, for an ISA's vectors `L`; internal to the source that includes it.
//
// For each kv head the keys, then the values; rows of values are padded to whole vectors.
//   BF16     keys [d/2][64 positions][2]   values [32 pairs of positions][padded d][2]
//   float32  keys [d][64 positions]        values [64 positions][padded d]
// so that lanes run over positions for q.k and over d for the weighted sum of values. A pair of
// BF16 neighbours is one 32-bit word: a shift makes one float vector of it, a mask the other.
// Padding and positions not stored yet hold anything, NaN too: readers use neither.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/attention.h"
#include "tensor/dtype.h"

namespace rota::lanes {
namespace {

template <class L>
constexpr int64_t padded_dim(int64_t head_dim) {
  return (head_dim + L::kCount - 1) / L::kCount * L::kCount;
}

template <class L>
struct Bf16Page {
  using Element = Bf16;
  static typename L::Two keys(const Bf16* keys, int64_t dim_pair, int64_t position) {
    return L::load_bf16_pairs(keys + (dim_pair * kKvBlockTokens + position) * 2);
  }
  // Values of positions 2 * pair and 2 * pair + 1.
  static typename L::Two values(const Bf16* values, int64_t padded, int64_t pair, int64_t column) {
    return L::load_bf16_pairs(values + (pair * padded + column) * 2);
  }
  static Bf16* key_slot(Bf16* keys, int64_t dim, int64_t position) {
    return keys + (dim / 2 * kKvBlockTokens + position) * 2;
  }
  static Bf16* value_slot(Bf16* values, int64_t padded, int64_t dim, int64_t position) {
    return values + (position / 2 * padded + dim) * 2 + position % 2;
  }
  static constexpr int64_t kValueStep = 2;  // from one element of a value to the next
  static Bf16 round(float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    const uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return {static_cast<uint16_t>(nan ? (bits >> 16) | 0x40u : nearest)};
  }
  static void store_key_pair(Bf16* slot, Bf16 even, Bf16 odd) {
    slot[0] = even;
    slot[1] = odd;
  }
};

template <class L>
struct FloatPage {
  using Element = float;
  static typename L::Two keys(const float* keys, int64_t dim_pair, int64_t position) {
    const float* even = keys + dim_pair * 2 * kKvBlockTokens + position;
    return {L::load(even), L::load(even + kKvBlockTokens)};
  }
  static typename L::Two values(const float* values, int64_t padded, int64_t pair, int64_t column) {
    const float* even = values + pair * 2 * padded + column;
    return {L::load(even), L::load(even + padded)};
  }
  static float* key_slot(float* keys, int64_t dim, int64_t position) {
    return keys + dim * kKvBlockTokens + position;
  }
  static float* value_slot(float* values, int64_t padded, int64_t dim, int64_t position) {
    return values + position * padded + dim;
  }
  static constexpr int64_t kValueStep = 1;
  static float round(float x) { return x; }
  static void store_key_pair(float* slot, float even, float odd) {
    slot[0] = even;
    slot[kKvBlockTokens] = odd;
  }
};

// Where one kv head's keys and values begin in a page.
template <class L, class Page>
struct HeadPlace {
  using Element = typename Page::Element;
  int64_t key_elements;
  int64_t value_elements;
  explicit HeadPlace(int64_t head_dim)
      : key_elements(kKvBlockTokens * head_dim),
        value_elements(kKvBlockTokens * padded_dim<L>(head_dim)) {}

  int64_t bytes() const {
    return (key_elements + value_elements) * static_cast<int64_t>(sizeof(Element));
  }
  Element* keys(const KvPages& pages, int64_t block, int64_t kv_head) const {
    const int64_t page = pages.block_table.data()[block];
    std::byte* base = pages.base + page * pages.page_stride.count;
    return reinterpret_cast<Element*>(base + kv_head * bytes());
  }
};

template <class L>
Bytes kv_page_bytes(const KvShape& shape) {
  const int64_t head = shape.format == KvFormat::kBf16
                           ? HeadPlace<L, Bf16Page<L>>(shape.head_dim).bytes()
                           : HeadPlace<L, FloatPage<L>>(shape.head_dim).bytes();
  return {shape.kv_heads * head};
}

// Stores one position of one kv head. Rounds a piece of the row first, in a loop that compilers
// turn into vectors, then scatters it.
template <class L, class Page>
void store_position(typename Page::Element* keys, typename Page::Element* values,
                    const StoreKvArgs& args, int64_t position, int64_t offset) {
  constexpr int64_t kPiece = 64;
  const int64_t dim = args.shape.head_dim;
  const int64_t padded = padded_dim<L>(dim);
  typename Page::Element piece[kPiece];
  for (int64_t begin = 0; begin < dim; begin += kPiece) {
    const int64_t count = std::min(kPiece, dim - begin);
    const float* key = args.keys + offset + begin;
    for (int64_t i = 0; i < count; ++i) piece[i] = Page::round(key[i]);
    for (int64_t i = 0; i < count; i += 2) {
      Page::store_key_pair(Page::key_slot(keys, begin + i, position), piece[i], piece[i + 1]);
    }
    const float* value = args.values + offset + begin;
    for (int64_t i = 0; i < count; ++i) piece[i] = Page::round(value[i]);
    typename Page::Element* slot = Page::value_slot(values, padded, begin, position);
    for (int64_t i = 0; i < count; ++i) slot[i * Page::kValueStep] = piece[i];
  }
}

template <class L, class Page>
void store_kv_as(const StoreKvArgs& args) {
  const HeadPlace<L, Page> place(args.shape.head_dim);
  for (int64_t t = 0; t < args.tokens; ++t) {
    const int64_t position = args.first_position + t;
    for (int64_t h = 0; h < args.shape.kv_heads; ++h) {
      auto* keys = place.keys(args.pages, position / kKvBlockTokens, h);
      store_position<L, Page>(keys, keys + place.key_elements, args, position % kKvBlockTokens,
                              t * args.stride + h * args.shape.head_dim);
    }
  }
}

template <class L>
void store_kv(const StoreKvArgs& args) {
  if (args.shape.format == KvFormat::kBf16) return store_kv_as<L, Bf16Page<L>>(args);
  store_kv_as<L, FloatPage<L>>(args);
}

}  // namespace
}  // namespace rota::lanes
