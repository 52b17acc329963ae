// Attention over a paged KV cache, one layer at a time.
//
// A page (KV block) holds the keys and values of kKvBlockTokens consecutive positions of one
// sequence, for one layer: positions [b * 64, (b + 1) * 64) for the b-th entry of the sequence's
// block table. The order inside a page belongs to the ISA's kernels: pages are written by store_kv
// and read by attend, nobody else looks inside.
//
// Contract: for every query the softmax runs online over the pages in order from position 0 (or
// from the first page the window touches, always masked by position, never by page), in fixed
// ranges of pages that are combined in a fixed tree. So prefill, any chunk of it, and decode give
// the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace rota {

inline constexpr int64_t kKvBlockTokens = 64;

enum class KvFormat { kBf16, kFloat32 };

struct KvShape {
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  KvFormat format = KvFormat::kBf16;
  bool operator==(const KvShape&) const = default;
};

// One sequence's keys and values in one layer.
struct KvPages {
  std::byte* base = nullptr;  // page p of this layer begins at base + p * page_stride
  Bytes page_stride;
  std::span<const int32_t>
      block_table;  // page of each block of 64 positions; -1: freed, behind the window
};

struct StoreKvArgs {
  KvShape shape;
  KvPages pages;
  int64_t first_position = 0;
  int64_t tokens = 0;
  const float* keys = nullptr;  // [tokens, kv_heads * head_dim] with stride; already rotated
  const float* values = nullptr;
  int64_t stride = 0;  // elements, of both
};

struct AttendArgs {
  KvShape shape;
  KvPages pages;
  int64_t query_heads =
      0;  // a multiple of kv_heads; query head h reads kv head h / (query_heads / kv_heads)
  int64_t first_position = 0;      // of the first query token
  int64_t tokens = 0;              // consecutive query tokens of this sequence
  const float* queries = nullptr;  // [tokens, query_heads * head_dim] with stride; already rotated
  int64_t query_stride = 0;
  float* out = nullptr;  // like queries
  int64_t out_stride = 0;
  float scale = 1.0f;  // of q.k, head_dim^-0.5
  int64_t window = 0;  // key j is seen by query i when 0 <= i - j < window; 0: causal only
  const float* sinks = nullptr;  // [query_heads] one more logit a head, without a value; or none
  // The part this call computes: all query heads of kv head `kv_head`, query tokens [token_begin,
  // token_end).
  int64_t kv_head = 0;
  int64_t token_begin = 0;
  int64_t token_end = 0;
  std::span<std::byte> scratch;  // attend_scratch_bytes(shape, query_heads) long
};

}  // namespace rota
