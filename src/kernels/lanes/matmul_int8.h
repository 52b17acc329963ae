// MXFP4 and NVFP4 x 8-bit inputs over an ISA's vectors `V`: written once, compiled for each ISA,
// internal to the source that includes it. A vector holds a 32-bit number for each of kRows rows of
// weights.
//
//   Ints, Floats, Partial      integer sums, float sums, and integer sums while four steps go on
//   transpose(codes, out)      16 bytes of each row to four vectors: dword d of every row
//   low_weights, high_weights  the nibbles of bytes to bytes: twice E2M1 plus 12
//   scales(Code, bytes)        kRows scale bytes to floats
//   begin, step, end           Partial from Ints, + four products of bytes in each row, and back
//   kManyVectors, kManyTokens  the register tile for many tokens; kFewTokens: up to so many decode
//                              weights in registers, for themselves alone
//
// An element of the result, whatever the number of tokens: over the scales of a row in the order of
// K, sum = fma(float(exact integer sum), weight scale * input scale, sum); then
// WeightMatrix::finish.
#pragma once

#include <emmintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/int8_input.h"
#include "kernels/matmul.h"

namespace rota::lanes {
namespace {

// Scale bytes of so many rows are transposed at a time, so many of each.
inline constexpr int kScaleTile = 16;

// out [i][r] = byte i of row r. Four times the perfect shuffle of 16 rows.
inline void transpose_scales(const uint8_t (*rows)[kScaleTile], uint8_t (*out)[kScaleTile]) {
  __m128i v[kScaleTile];
  for (int r = 0; r < kScaleTile; ++r) {
    v[r] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[r]));
  }
  for (int stage = 0; stage < 4; ++stage) {
    __m128i next[kScaleTile];
    for (int r = 0; r < kScaleTile / 2; ++r) {
      next[2 * r] = _mm_unpacklo_epi8(v[r], v[r + kScaleTile / 2]);
      next[2 * r + 1] = _mm_unpackhi_epi8(v[r], v[r + kScaleTile / 2]);
    }
    std::copy_n(next, kScaleTile, v);
  }
  for (int i = 0; i < kScaleTile; ++i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out[i]), v[i]);
  }
}

template <class V, class Code>
class Int8Matmul {
  using Ints = typename V::Ints;
  using Floats = typename V::Floats;
  using Partial = typename V::Partial;
  using Pieces = Int8Pieces<Code>;

  static constexpr int kSteps = 8;  // of a block: four elements of each row
  static constexpr int kPieceSteps = kSteps / Pieces::kCount;
  static constexpr int kRows = V::kRows;
  static constexpr int kVectors = V::kManyVectors;
  // A chunk of K: as many blocks as have kScaleTile scales.
  static constexpr int64_t kChunk = kScaleTile / Pieces::kCount;
  static constexpr int64_t kMaxTokenBlock = 128;  // tokens whose sums are in L2
  static_assert(kRows <= kScaleTile);

  // One vector of rows, decoded.
  struct Block {
    Ints steps[kSteps];
    Floats scales[Pieces::kCount];
  };

 public:
  static constexpr int64_t kTileRows = kVectors * kRows;
  static constexpr int64_t kPanelBytes = kVectors * kChunk * static_cast<int64_t>(sizeof(Block));
  static constexpr int64_t kScratchBytes =
      kPanelBytes + kMaxTokenBlock * kVectors * static_cast<int64_t>(sizeof(Floats));

  explicit Int8Matmul(const MatmulArgs& args)
      : args_(args),
        weights_(*args.weights),
        blocks_((weights_.in.logical() + kCodedBlock - 1) / kCodedBlock),
        panel_(reinterpret_cast<Block*>(args.scratch.data())),
        sums_(reinterpret_cast<Floats*>(args.scratch.data() + kPanelBytes)) {}

  void run() {
    const int64_t tokens = args_.input.tokens;
    if (tokens == 0) return;
    if (tokens <= V::kFewTokens) {
      for (int64_t n = args_.first_column; n < args_.end_column; n += kRows) {
        multiply_few<V::kFewTokens>(n, std::min<int64_t>(kRows, args_.end_column - n));
      }
      return;
    }
    for (int64_t t = 0; t < tokens; t += kMaxTokenBlock) {
      for (int64_t n = args_.first_column; n < args_.end_column; n += kTileRows) {
        multiply_many<kVectors>(n, std::min(kTileRows, args_.end_column - n), t,
                                std::min(kMaxTokenBlock, tokens - t));
      }
    }
  }

 private:
  // A vector's rows; behind the last one it is repeated, and the results are dropped.
  struct Rows {
    const uint8_t* codes[kRows];
    const uint8_t* scales[kRows];
    uint8_t chunk_scales[kScaleTile][kScaleTile];  // [scale][row]
  };

  void find_rows(int64_t n, int64_t count, Rows& rows) const {
    for (int64_t r = 0; r < kRows; ++r) {
      const CodedRows row = coded_rows<Code>(weights_, n + std::min(r, count - 1), 0);
      rows.codes[r] = row.codes;
      rows.scales[r] = row.scales;
    }
  }

  int64_t chunk_end(int64_t first_block) const { return std::min(first_block + kChunk, blocks_); }

  // The scales of a chunk, no byte behind the row's last one.
  void load_scales(Rows& rows, int64_t first_block) const {
    constexpr int64_t kScaleElements = kCodedBlock / Code::kScaleBytes;
    const int64_t all = (weights_.in.logical() + kScaleElements - 1) / kScaleElements;
    const int64_t first = first_block * Code::kScaleBytes;
    uint8_t bytes[kScaleTile][kScaleTile] = {};
    if (all - first >= kScaleTile) {
      for (int r = 0; r < kRows; ++r) std::memcpy(bytes[r], rows.scales[r] + first, kScaleTile);
    } else {
      for (int r = 0; r < kRows; ++r) {
        for (int64_t i = 0; i < all - first; ++i) bytes[r][i] = rows.scales[r][first + i];
      }
    }
    transpose_scales(bytes, rows.chunk_scales);
  }

  // Into L2: the same bytes of the rows that are decoded `ahead` rows later.
  void prefetch(const Rows& rows, int64_t block, int64_t ahead) const {
    constexpr int64_t kLineBlocks = static_cast<int64_t>(kCacheLine) / Code::kCodeBytes;
    if (block % kLineBlocks != 0) return;
    for (int r = 0; r < kRows; ++r) {
      __builtin_prefetch(
          rows.codes[r] + ahead * weights_.row_stride.count + block * Code::kCodeBytes, 0, 2);
    }
  }

  [[gnu::always_inline]] inline Block decode(const Rows& rows, int64_t block, int64_t ahead) const {
    prefetch(rows, block, ahead);
    const int64_t left = weights_.in.logical() - block * kCodedBlock;
    const uint8_t* codes[kRows];
    uint8_t tails[kRows][Code::kCodeBytes];
    for (int r = 0; r < kRows; ++r) codes[r] = rows.codes[r] + block * Code::kCodeBytes;
    if (left < kCodedBlock) copy_tails(codes, left, tails);
    Ints dwords[4];
    V::transpose(codes, dwords);
    Block decoded;
    for (int d = 0; d < 4; ++d) {
      decoded.steps[2 * d] = V::low_weights(dwords[d]);
      decoded.steps[2 * d + 1] = V::high_weights(dwords[d]);
    }
    for (int i = 0; i < Pieces::kCount; ++i) {
      decoded.scales[i] = V::scales(Code{}, rows.chunk_scales[block % kChunk * Pieces::kCount + i]);
    }
    return decoded;
  }

  // The last block of a row that is no multiple of 32 wide: copies that end in zeros.
  static void copy_tails(const uint8_t* (&codes)[kRows], int64_t left,
                         uint8_t (&tails)[kRows][Code::kCodeBytes]) {
    const int64_t bytes = (left + 1) / 2;
    for (int r = 0; r < kRows; ++r) {
      for (int64_t i = 0; i < Code::kCodeBytes; ++i) tails[r][i] = i < bytes ? codes[r][i] : 0;
      codes[r] = tails[r];
    }
  }

  // sums [kTokens][kCount] += one block of kCount vectors of rows, `apart` blocks from each other.
  template <int kTokens, int kCount>
  [[gnu::always_inline]] static inline void add_block(const Block* blocks, int64_t apart,
                                                      const std::byte* x, int64_t x_stride,
                                                      Floats (&sums)[kTokens][kCount]) {
    for (int piece = 0; piece < Pieces::kCount; ++piece) {
      Int8Head heads[kTokens];
      Ints totals[kTokens][kCount];
      for (int t = 0; t < kTokens; ++t) {
        std::memcpy(&heads[t], x + t * x_stride, sizeof heads[t]);
        for (Ints& total : totals[t]) total = V::broadcast(heads[t].start);
      }
      for (int step = 0; step < kPieceSteps; step += 4) {
        add_four_steps<kTokens, kCount>(blocks, apart, piece * kPieceSteps + step,
                                        x + sizeof(Int8Head) + step * 4, x_stride, totals);
      }
      for (int r = 0; r < kCount; ++r) {
        const Floats scale = blocks[r * apart].scales[piece];
        for (int t = 0; t < kTokens; ++t) {
          const Floats factor = V::multiply(scale, V::broadcast(heads[t].half_scale));
          sums[t][r] = V::fma(V::to_floats(totals[t][r]), factor, sums[t][r]);
        }
      }
      x += Pieces::kBytes;
    }
  }

  template <int kTokens, int kCount>
  [[gnu::always_inline]] static inline void add_four_steps(const Block* blocks, int64_t apart,
                                                           int first_step, const std::byte* x,
                                                           int64_t x_stride,
                                                           Ints (&totals)[kTokens][kCount]) {
    Partial partial[kTokens][kCount];
    for (int t = 0; t < kTokens; ++t) {
      for (int r = 0; r < kCount; ++r) partial[t][r] = V::begin(totals[t][r]);
    }
    for (int step = 0; step < 4; ++step) {
      Ints weights[kCount];
      for (int r = 0; r < kCount; ++r) weights[r] = blocks[r * apart].steps[first_step + step];
      for (int t = 0; t < kTokens; ++t) {
        int32_t four;
        std::memcpy(&four, x + t * x_stride + step * 4, sizeof four);
        const Ints inputs = V::broadcast(four);
        for (int r = 0; r < kCount; ++r) {
          partial[t][r] = V::step(partial[t][r], weights[r], inputs);
        }
      }
    }
    for (int t = 0; t < kTokens; ++t) {
      for (int r = 0; r < kCount; ++r) totals[t][r] = V::end(totals[t][r], partial[t][r]);
    }
  }

  // All tokens, at most kTokens, times one vector of rows.
  template <int kTokens>
  void multiply_few(int64_t n, int64_t count) const {
    if (args_.input.tokens != kTokens) {
      if constexpr (kTokens > 1) multiply_few<kTokens - 1>(n, count);
      return;
    }
    Rows rows;
    find_rows(n, count, rows);
    const std::byte* x = args_.input.data;
    Floats sums[kTokens][1];
    for (auto& sum : sums) sum[0] = V::zero();
    for (int64_t first = 0; first < blocks_; first += kChunk) {
      load_scales(rows, first);
      for (int64_t block = first; block < chunk_end(first); ++block) {
        const Block decoded = decode(rows, block, kRows);
        add_block<kTokens, 1>(&decoded, 0, x, args_.input.layout.token_stride.count, sums);
        x += Pieces::kBlockBytes;
      }
    }
    for (int t = 0; t < kTokens; ++t) write_out(n, count, t, sums[t][0]);
  }

  // Tokens [first_token, + tokens) times kCount vectors of rows, or fewer where there are not so
  // many.
  template <int kCount>
  void multiply_many(int64_t n, int64_t count, int64_t first_token, int64_t tokens) const {
    if (count <= (kCount - 1) * kRows) {
      if constexpr (kCount > 1) multiply_many<kCount - 1>(n, count, first_token, tokens);
      return;
    }
    Rows rows[kCount];
    const auto rows_of = [count](int r) { return std::min<int64_t>(kRows, count - r * kRows); };
    for (int r = 0; r < kCount; ++r) find_rows(n + r * kRows, rows_of(r), rows[r]);
    for (int64_t i = 0; i < tokens * kCount; ++i) sums_[i] = V::zero();
    for (int64_t first = 0; first < blocks_; first += kChunk) {
      for (int r = 0; r < kCount; ++r) {
        load_scales(rows[r], first);
        for (int64_t block = first; block < chunk_end(first); ++block) {
          panel_[r * kChunk + block - first] = decode(rows[r], block, kTileRows);
        }
      }
      for (int64_t t = 0; t < tokens; t += V::kManyTokens) {
        const int64_t group = std::min<int64_t>(V::kManyTokens, tokens - t);
        add_chunk<V::kManyTokens, kCount>(first, first_token + t, group, sums_ + t * kCount);
      }
    }
    for (int64_t t = 0; t < tokens; ++t) {
      for (int r = 0; r < kCount; ++r) {
        write_out(n + r * kRows, rows_of(r), first_token + t, sums_[t * kCount + r]);
      }
    }
  }

  // sums [group][kCount] += the panel's chunk, for `group` tokens, at most kTokens.
  template <int kTokens, int kCount>
  void add_chunk(int64_t first_block, int64_t token, int64_t group, Floats* sums) const {
    if (group != kTokens) {
      if constexpr (kTokens > 1) add_chunk<kTokens - 1, kCount>(first_block, token, group, sums);
      return;
    }
    const int64_t stride = args_.input.layout.token_stride.count;
    const std::byte* x = args_.input.data + token * stride + first_block * Pieces::kBlockBytes;
    Floats kept[kTokens][kCount];
    for (int t = 0; t < kTokens; ++t) {
      for (int r = 0; r < kCount; ++r) kept[t][r] = sums[t * kCount + r];
    }
    const int64_t count = chunk_end(first_block) - first_block;
    for (int64_t block = 0; block < count; ++block) {
      add_block<kTokens, kCount>(panel_ + block, kChunk, x, stride, kept);
      x += Pieces::kBlockBytes;
    }
    for (int t = 0; t < kTokens; ++t) {
      for (int r = 0; r < kCount; ++r) sums[t * kCount + r] = kept[t][r];
    }
  }

  void write_out(int64_t n, int64_t count, int64_t token, Floats sums) const {
    float result[kRows];
    V::store(result, sums);
    float* out = args_.out + token * args_.out_stride;
    for (int64_t i = 0; i < count; ++i) out[n + i] = weights_.finish(n + i, result[i]);
  }

  const MatmulArgs& args_;
  const WeightMatrix& weights_;
  const int64_t blocks_;  // of a row
  Block* const panel_;    // [vectors][kChunk]
  Floats* const sums_;    // [tokens][vectors]
};

template <class V>
void multiply_int8(const MatmulArgs& args) {
  ROTA_DCHECK(args.input.layout.kind == int8_layout(*args.weights).kind,
              "the input was prepared for another weight format");
  if (args.weights->format == WeightFormat::kMxfp4) return Int8Matmul<V, Mxfp4Code>(args).run();
  Int8Matmul<V, Nvfp4Code>(args).run();
}

// Enough for either format.
template <class V>
constexpr int64_t int8_scratch_bytes() {
  return std::max(Int8Matmul<V, Mxfp4Code>::kScratchBytes, Int8Matmul<V, Nvfp4Code>::kScratchBytes);
}
template <class V>
constexpr int64_t int8_column_granularity() {
  return Int8Matmul<V, Mxfp4Code>::kTileRows;
}

}  // namespace
}  // namespace rota::lanes
