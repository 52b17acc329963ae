// Attention over pages with an ISA's vectors `L`; internal to the source that includes it.
//
// Query rows (a token's head of the group) are worked on in tiles of 32, page by page: scores of
// the tile against the page's keys, the online softmax of each row, the weighted sum of values.
// All rows of a tile share the page while it is in the cache.
//
// Order of sums, for one row, whatever tile it is in: q.k over d ascending; weights of a page by
// lane (position mod kCount); values over positions ascending; the online softmax page by page;
// after each 16 pages (counted from position 0) the range is merged into the total, in order.
// A key that a row does not see has weight 0 and is no part of the row's maximum.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/attention.h"
#include "kernels/lanes/kv_page.h"
#include "kernels/lanes/math.h"

// For lambdas over sums that must stay in registers.
#define ROTA_INLINE __attribute__((always_inline))

namespace rota::lanes {
namespace {

inline constexpr int64_t kTileRows = 32;
inline constexpr int64_t kRangePages = 16;
inline constexpr int kRowBlock = 4;  // rows that share the registers
inline constexpr float kNothing = -std::numeric_limits<float>::infinity();

// A half-open range of positions, or of places in a page.
struct Span {
  int64_t begin;
  int64_t end;
  bool empty() const { return begin >= end; }
};

// The running state of a tile, laid out in the caller's scratch.
struct Tile {
  int64_t rows = 0;
  int64_t first_row = 0;  // row = token * group + head of the group
  int64_t dim = 0;        // of a query: head_dim
  int64_t padded = 0;     // of a value
  float* queries;         // [rows, dim] times scale
  float* weights;         // [rows, 64] scores, then weights, of the current page
  float* values;          // [rows, padded] of the current range
  float* total_values;    // [rows, padded] of the ranges before
  float* lane_sums;       // [rows, kCount] of the current range's weights
  float* largest;         // [rows] score of the current range
  float* total_sums;      // [rows]
  float* total_largest;   // [rows]
};

template <class L>
int64_t tile_floats(int64_t dim) {
  return kTileRows * (dim + kKvBlockTokens + 2 * padded_dim<L>(dim) + L::kCount + 3);
}

template <class L>
Tile make_tile(const AttendArgs& args) {
  Tile tile;
  tile.dim = args.shape.head_dim;
  tile.padded = padded_dim<L>(tile.dim);
  auto* next = reinterpret_cast<float*>(args.scratch.data());
  const auto take = [&](int64_t floats_a_row) {
    float* taken = next;
    next += kTileRows * floats_a_row;
    return taken;
  };
  tile.weights = take(kKvBlockTokens);
  tile.values = take(tile.padded);
  tile.total_values = take(tile.padded);
  tile.lane_sums = take(L::kCount);
  tile.queries = take(tile.dim);
  tile.largest = take(1);
  tile.total_sums = take(1);
  tile.total_largest = take(1);
  return tile;
}

// The positions that query token `token` sees.
Span visible(const AttendArgs& args, int64_t token) {
  const int64_t position = args.first_position + token;
  return {args.window > 0 ? std::max<int64_t>(0, position - args.window + 1) : 0, position + 1};
}

// The part of `positions` that lies in a page, counted from the page's start.
Span in_page(Span positions, int64_t page) {
  const int64_t start = page * kKvBlockTokens;
  return {std::max<int64_t>(positions.begin - start, 0),
          std::min(positions.end - start, kKvBlockTokens)};
}

// ---- scores

// Scores of kRows rows for kColumns vectors of positions from `position` on.
template <class L, class Page, int kRows, int kColumns>
void score_block(const Tile& tile, int64_t row, const typename Page::Element* keys,
                 int64_t position) {
  using Vec = typename L::Vec;
  Vec sums[kRows][kColumns];
  for (auto& row_sums : sums) {
    for (Vec& sum : row_sums) sum = L::zero();
  }
  const float* query = tile.queries + row * tile.dim;
  for (int64_t pair = 0; pair < tile.dim / 2; ++pair) {
    typename L::Two key[kColumns];
    for (int c = 0; c < kColumns; ++c) key[c] = Page::keys(keys, pair, position + c * L::kCount);
    for (int r = 0; r < kRows; ++r) {
      const Vec even = L::broadcast(query[r * tile.dim + 2 * pair]);
      for (int c = 0; c < kColumns; ++c) sums[r][c] = L::fma(even, key[c].even, sums[r][c]);
      const Vec odd = L::broadcast(query[r * tile.dim + 2 * pair + 1]);
      for (int c = 0; c < kColumns; ++c) sums[r][c] = L::fma(odd, key[c].odd, sums[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float* out = tile.weights + (row + r) * kKvBlockTokens + position;
    for (int c = 0; c < kColumns; ++c) L::store(out + c * L::kCount, sums[r][c]);
  }
}

template <class L, class Page, int kRows>
void score_rows(const Tile& tile, int64_t row, const typename Page::Element* keys, Span part) {
  constexpr int kColumns = L::columns_beside(kRows);
  constexpr int64_t kStep = kColumns * L::kCount;
  static_assert(kKvBlockTokens % kStep == 0);
  for (int64_t p = part.begin / kStep * kStep; p < part.end; p += kStep) {
    score_block<L, Page, kRows, kColumns>(tile, row, keys, p);
  }
}

// ---- softmax

template <class L>
void scale_row(float* values, int64_t padded, float factor) {
  const auto by = L::broadcast(factor);
  for (int64_t i = 0; i < padded; i += L::kCount) {
    L::store(values + i, L::mul(L::load(values + i), by));
  }
}

// Makes weights of a row's scores: `seen` is what the row sees of the page, `part` what its tile
// does (whose other weights become 0).
template <class L>
void weigh_row(const Tile& tile, int64_t row, Span seen, Span part) {
  using Vec = typename L::Vec;
  float* weights = tile.weights + row * kKvBlockTokens;
  const int64_t begin = part.begin / L::kCount * L::kCount;
  if (seen.empty()) {
    for (int64_t i = begin; i < part.end; i += L::kCount) L::store(weights + i, L::zero());
    return;
  }
  const auto only_seen = [&](Vec v, int64_t i, Vec otherwise) {
    if (seen.begin <= i && i + L::kCount <= seen.end) return v;
    return L::keep(v, seen.begin - i, seen.end - i, otherwise);
  };
  const Vec nothing = L::broadcast(kNothing);
  Vec page_largest = nothing;
  for (int64_t i = begin; i < part.end; i += L::kCount) {
    page_largest = L::max(page_largest, only_seen(L::load(weights + i), i, nothing));
  }
  float& largest = tile.largest[row];
  float* lane_sums = tile.lane_sums + row * L::kCount;
  const float now = L::largest(page_largest);
  if (!(now <= largest)) {  // a NaN gets in too: it must come out
    const float factor = exp_of_nonpositive<L>(largest - now);
    scale_row<L>(tile.values + row * tile.padded, tile.padded, factor);
    scale_row<L>(lane_sums, L::kCount, factor);
    largest = now;
  }
  const Vec by = L::broadcast(largest);
  Vec sum = L::load(lane_sums);
  for (int64_t i = begin; i < part.end; i += L::kCount) {
    const Vec e = exp_of_nonpositive<L>(L::sub(L::load(weights + i), by));
    const Vec weight = only_seen(e, i, L::zero());
    sum = L::add(sum, weight);
    L::store(weights + i, weight);
  }
  L::store(lane_sums, sum);
}

// ---- values

// Adds weight * value for the positions of `part`, kColumns vectors of the values from `column` on.
template <class L, class Page, int kRows, int kColumns>
void value_block(const Tile& tile, int64_t row, const typename Page::Element* values, Span part,
                 int64_t column) {
  using Vec = typename L::Vec;
  const int64_t padded = tile.padded;
  float* out = tile.values + row * padded + column;
  const float* weights = tile.weights + row * kKvBlockTokens;
  Vec sums[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) sums[r][c] = L::load(out + r * padded + c * L::kCount);
  }
  const auto add_position = [&](int64_t p, const Vec(&value)[kColumns]) ROTA_INLINE {
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = L::broadcast(weights[r * kKvBlockTokens + p]);
      for (int c = 0; c < kColumns; ++c) sums[r][c] = L::fma(weight, value[c], sums[r][c]);
    }
  };
  // The neighbour of a position at the edge of `part` may be unwritten, so it is left out rather
  // than weighted 0.
  const auto add_pair = [&](int64_t pair, bool even, bool odd) ROTA_INLINE {
    Vec evens[kColumns];
    Vec odds[kColumns];
    for (int c = 0; c < kColumns; ++c) {
      const auto two = Page::values(values, padded, pair, column + c * L::kCount);
      evens[c] = two.even;
      odds[c] = two.odd;
    }
    if (even) add_position(2 * pair, evens);
    if (odd) add_position(2 * pair + 1, odds);
  };
  int64_t p = part.begin;
  if (p % 2 != 0) add_pair(p++ / 2, false, true);
  for (; p + 2 <= part.end; p += 2) add_pair(p / 2, true, true);
  if (p < part.end) add_pair(p / 2, true, false);
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) L::store(out + r * padded + c * L::kCount, sums[r][c]);
  }
}

template <class L, class Page, int kRows, int kColumns>
void value_columns(const Tile& tile, int64_t row, const typename Page::Element* values, Span part,
                   int64_t column) {
  for (; column + kColumns * L::kCount <= tile.padded; column += kColumns * L::kCount) {
    value_block<L, Page, kRows, kColumns>(tile, row, values, part, column);
  }
  if constexpr (kColumns > 1) {
    value_columns<L, Page, kRows, kColumns / 2>(tile, row, values, part, column);
  }
}

// ---- a page, a range, a tile

// Calls body(row, kRows) for blocks of kRowBlock rows, then for what is left.
template <class Body>
void for_row_blocks(int64_t rows, Body body) {
  int64_t row = 0;
  for (; row + kRowBlock <= rows; row += kRowBlock) {
    body(row, std::integral_constant<int, kRowBlock>{});
  }
  static_assert(kRowBlock == 4);
  if (rows - row == 1) body(row, std::integral_constant<int, 1>{});
  if (rows - row == 2) body(row, std::integral_constant<int, 2>{});
  if (rows - row == 3) body(row, std::integral_constant<int, 3>{});
}

template <class L, class Page>
void attend_page(const AttendArgs& args, const Tile& tile, int64_t page, Span part) {
  const HeadPlace<L, Page> place(tile.dim);
  const auto* keys = place.keys(args.pages, page, args.kv_head);
  const auto* values = keys + place.key_elements;
  const int64_t group = args.query_heads / args.shape.kv_heads;
  for_row_blocks(tile.rows, [&](int64_t row, auto rows) {
    score_rows<L, Page, rows.value>(tile, row, keys, part);
  });
  for (int64_t row = 0; row < tile.rows; ++row) {
    const int64_t token = (tile.first_row + row) / group;
    weigh_row<L>(tile, row, in_page(visible(args, token), page), part);
  }
  for_row_blocks(tile.rows, [&](int64_t row, auto rows) {
    value_columns<L, Page, rows.value, L::columns_beside(rows.value)>(tile, row, values, part, 0);
  });
}

template <class L>
void begin_range(const Tile& tile) {
  std::fill_n(tile.values, tile.rows * tile.padded, 0.0f);
  std::fill_n(tile.lane_sums, tile.rows * L::kCount, 0.0f);
  std::fill_n(tile.largest, tile.rows, kNothing);
}

// Merges a row's range into its total. A range of which the row saw nothing changes nothing.
template <class L>
void merge_row(const Tile& tile, int64_t row) {
  const float range_largest = tile.largest[row];
  if (range_largest == kNothing) return;
  const float range_sum = L::sum(L::load(tile.lane_sums + row * L::kCount));
  const float* values = tile.values + row * tile.padded;
  float* total = tile.total_values + row * tile.padded;
  float& largest = tile.total_largest[row];
  float& sum = tile.total_sums[row];
  if (largest == kNothing) {
    std::copy_n(values, tile.padded, total);
    largest = range_largest;
    sum = range_sum;
    return;
  }
  const float both = std::max(largest, range_largest);
  const float old_factor = exp_of_nonpositive<L>(largest - both);
  const float new_factor = exp_of_nonpositive<L>(range_largest - both);
  largest = both;
  sum = sum * old_factor + range_sum * new_factor;
  const auto by_old = L::broadcast(old_factor);
  const auto by_new = L::broadcast(new_factor);
  for (int64_t i = 0; i < tile.padded; i += L::kCount) {
    const auto kept = L::mul(L::load(total + i), by_old);
    L::store(total + i, L::fma(L::load(values + i), by_new, kept));
  }
}

template <class L>
void load_queries(const AttendArgs& args, const Tile& tile, int64_t group) {
  const auto scale = L::broadcast(args.scale);
  for (int64_t row = 0; row < tile.rows; ++row) {
    const int64_t token = (tile.first_row + row) / group;
    const int64_t head = args.kv_head * group + (tile.first_row + row) % group;
    const float* from = args.queries + token * args.query_stride + head * tile.dim;
    float* to = tile.queries + row * tile.dim;
    for_each_vector<L>(tile.dim, [&](int64_t i, auto some) {
      some.store(to + i, L::mul(some.load(from + i), scale));
    });
  }
}

// The sink joins last: one more logit, without a value.
template <class L>
void finish_row(const AttendArgs& args, const Tile& tile, int64_t row, int64_t group) {
  const int64_t token = (tile.first_row + row) / group;
  const int64_t head = args.kv_head * group + (tile.first_row + row) % group;
  float shrink = 1.0f;
  float sum = tile.total_sums[row];
  if (args.sinks != nullptr) {
    const float sink = args.sinks[head];
    const float both = std::max(sink, tile.total_largest[row]);
    shrink = exp_of_nonpositive<L>(tile.total_largest[row] - both);
    sum = sum * shrink + exp_of_nonpositive<L>(sink - both);
  }
  const auto by = L::broadcast(shrink / sum);
  const float* total = tile.total_values + row * tile.padded;
  float* out = args.out + token * args.out_stride + head * tile.dim;
  for_each_vector<L>(tile.dim, [&](int64_t i, auto some) {
    // + 0: a value of -0 (weights 0 alone made it) must not tell tiles apart.
    some.store(out + i, L::add(L::mul(L::load(total + i), by), L::zero()));
  });
}

template <class L, class Page>
void attend_tile(const AttendArgs& args, const Tile& tile, int64_t group) {
  const Span first = visible(args, tile.first_row / group);
  const Span last = visible(args, (tile.first_row + tile.rows - 1) / group);
  const Span positions{first.begin, last.end};
  const int64_t end_page = (positions.end + kKvBlockTokens - 1) / kKvBlockTokens;
  load_queries<L>(args, tile, group);
  std::fill_n(tile.total_values, tile.rows * tile.padded, 0.0f);
  std::fill_n(tile.total_sums, tile.rows, 0.0f);
  std::fill_n(tile.total_largest, tile.rows, kNothing);
  begin_range<L>(tile);
  for (int64_t page = positions.begin / kKvBlockTokens; page < end_page; ++page) {
    attend_page<L, Page>(args, tile, page, in_page(positions, page));
    if ((page + 1) % kRangePages != 0 && page + 1 != end_page) continue;
    for (int64_t row = 0; row < tile.rows; ++row) merge_row<L>(tile, row);
    begin_range<L>(tile);
  }
  for (int64_t row = 0; row < tile.rows; ++row) finish_row<L>(args, tile, row, group);
}

template <class L, class Page>
void attend_as(const AttendArgs& args) {
  const int64_t group = args.query_heads / args.shape.kv_heads;
  const int64_t end = args.token_end * group;
  Tile tile = make_tile<L>(args);
  for (int64_t row = args.token_begin * group; row < end; row += kTileRows) {
    tile.first_row = row;
    tile.rows = std::min(kTileRows, end - row);
    attend_tile<L, Page>(args, tile, group);
  }
}

template <class L>
Bytes attend_scratch_bytes(const KvShape& shape) {
  return {tile_floats<L>(shape.head_dim) * static_cast<int64_t>(sizeof(float))};
}

template <class L>
void attend(const AttendArgs& args) {
  if (args.shape.format == KvFormat::kBf16) return attend_as<L, Bf16Page<L>>(args);
  attend_as<L, FloatPage<L>>(args);
}

}  // namespace
}  // namespace rota::lanes

#undef ROTA_INLINE
