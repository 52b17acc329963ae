// Many tokens against weights of order kOutIn: the loops that the SIMD instruction sets share. What
// differs is a Tile, a struct in the anonymous namespace of the file that includes this one:
//
//   Acc, kRows, kTokens     a vector of partial sums; the register tile is kRows x kTokens of them
//   kRowBlock               rows of weights whose panel is in L1, beside a group's inputs
//   kStep                   elements of K that one weight vector holds
//   kElementBytes           of a weight as the tile reads it: 2 (BF16 words) or 4
//   kInputBytes             of an element of prepared input
//   kDecodeStep             elements of K that MXFP4 is decoded by
//   decode_mxfp4(codes, scales, blocks, words)      fills a row of the panel
//   kDecodesInTile          decoding_tile() decodes, multiplies and fills the panel at once, for the
//                           first group of tokens and whole tiles
//   tile<T>(rows, x, x_stride, steps, acc, fresh)   acc [T][kRows] += over `steps` vectors
//   reduce(acc, out)        out [kRows] = each vector's lanes added in the ISA's fixed tree
//
// K is walked in blocks whose partial sums are kept as whole vectors, so blocking changes no bit:
// an accumulator sees its products in the order of K, whatever the number of tokens, rows and
// blocks.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/matmul.h"
#include "platform/memory.h"
#include "quant/mxfp4.h"

namespace rota {
namespace {

// A tile's rows of MXFP4 from some k on: row r's blocks begin at codes + r * code_stride.
struct Mxfp4Rows {
  const uint8_t* codes;
  int64_t code_stride;
  const uint8_t* scales;
  int64_t scale_stride;
};

template <class Tile>
class MatmulDriver {
 public:
  static constexpr int64_t kRowBlock = Tile::kRowBlock;
  static constexpr int64_t kKBlock = 512;        // 1 KiB of words a row
  static constexpr int64_t kMaxTokenBlock = 72;  // tokens whose partial sums are in L2
  static_assert(kRowBlock % Tile::kRows == 0);

  static constexpr int64_t kPanelBytes = kRowBlock * kKBlock * Tile::kElementBytes;
  static constexpr int64_t kSumBytes =
      kRowBlock * kMaxTokenBlock * static_cast<int64_t>(sizeof(typename Tile::Acc));
  static constexpr int64_t kScratchBytes = kPanelBytes + kSumBytes;

  explicit MatmulDriver(const MatmulArgs& args)
      : args_(args),
        weights_(*args.weights),
        is_mxfp4_(weights_.format == WeightFormat::kMxfp4),
        k_end_(round_up(weights_.in.logical(), is_mxfp4_ ? Tile::kDecodeStep : Tile::kStep)),
        panel_(args.scratch.data()),
        sums_(reinterpret_cast<typename Tile::Acc*>(args.scratch.data() + kPanelBytes)) {}

  void run() {
    const int64_t tokens = args_.input.tokens;
    const int64_t blocks = (tokens + kMaxTokenBlock - 1) / kMaxTokenBlock;
    for (int64_t b = 0; b < blocks; ++b) {
      first_token_ = tokens * b / blocks;
      tokens_ = tokens * (b + 1) / blocks - first_token_;
      for (int64_t n = args_.first_column; n < args_.end_column; n += kRowBlock) {
        multiply_rows(n, std::min(kRowBlock, args_.end_column - n));
      }
    }
  }

 private:
  void multiply_rows(int64_t first_row, int64_t rows) {
    for (int64_t k = 0; k < k_end_; k += kKBlock) {
      const int64_t count = std::min(kKBlock, k_end_ - k);
      find_rows(first_row, rows, k, count);
      for (int64_t t = 0; t < tokens_;) {
        const int64_t group = next_group(tokens_ - t);
        for (int64_t r = 0; r < rows; r += Tile::kRows) {
          const TilePlace place{.first_row = first_row, .row = r, .token = t, .k = k};
          const bool decode = is_mxfp4_ && t == 0 && decodes_in_tile(rows, r);
          run_tile<Tile::kTokens>(place, group, count / Tile::kStep, decode);
        }
        t += group;
      }
    }
    write_out(first_row, rows);
  }

  // No group is left with a single token where two smaller ones can share the work.
  static int64_t next_group(int64_t left) {
    if (left == Tile::kTokens + 1) return (left + 1) / 2;
    return std::min<int64_t>(left, Tile::kTokens);
  }

  // Whole tiles only: a tile's rows are a stride apart then.
  static bool decodes_in_tile(int64_t rows, int64_t r) {
    return Tile::kDecodesInTile && round_up(r + 1, Tile::kRows) <= rows;
  }

  // Points row_ at `count` elements from k on of each row: where they lie, or in the panel. Rows
  // that fill up the last tile repeat the last one; their results are dropped.
  void find_rows(int64_t first_row, int64_t rows, int64_t k, int64_t count) {
    const bool overhangs = k + count > weights_.in.padded();
    for (int64_t r = 0; r < rows; ++r) {
      std::byte* copy = panel_ + r * kKBlock * Tile::kElementBytes;
      prefetch_row(first_row + r + kRowBlock, k, count);
      if (is_mxfp4_) {
        if (!decodes_in_tile(rows, r)) decode_row(first_row + r, k, count, copy);
        row_[r] = copy;
        continue;
      }
      const std::byte* there =
          weights_.data + (first_row + r) * weights_.row_stride.count + k * Tile::kElementBytes;
      row_[r] = there;
      if (overhangs) {
        const int64_t bytes = (weights_.in.logical() - k) * Tile::kElementBytes;
        std::memcpy(copy, there, static_cast<size_t>(bytes));
        std::memset(copy + bytes, 0, static_cast<size_t>(count * Tile::kElementBytes - bytes));
        row_[r] = copy;
      }
    }
    for (int64_t r = rows; r < round_up(rows, Tile::kRows); ++r) row_[r] = row_[rows - 1];
  }

  // Into L2: the same piece of the row that takes this one's place in the next row block.
  void prefetch_row(int64_t n, int64_t k, int64_t count) const {
    const int64_t block =
        is_mxfp4_ ? kMxfp4BlockBytes.count : kMxfp4BlockElements * Tile::kElementBytes;
    const std::byte* from =
        weights_.data + n * weights_.row_stride.count + k / kMxfp4BlockElements * block;
    for (int64_t i = 0; i < count / kMxfp4BlockElements * block; i += 64) {
      __builtin_prefetch(from + i, 0, 2);
    }
  }

  void decode_row(int64_t n, int64_t k, int64_t count, std::byte* words) {
    if constexpr (Tile::kElementBytes == 2) {
      const int64_t end = std::min(k + count, round_up(weights_.in.logical(), kMxfp4BlockElements));
      const Mxfp4Rows row = mxfp4_rows(n, k);
      Tile::decode_mxfp4(row.codes, row.scales, (end - k) / kMxfp4BlockElements, words);
    } else {
      (void)n, (void)k, (void)count, (void)words;
    }
  }

  struct TilePlace {
    int64_t first_row;  // of the row block
    int64_t row;        // of the tile, in the row block
    int64_t token;      // in the token block
    int64_t k;
  };

  template <int kGroup>
  void run_tile(const TilePlace& at, int64_t group, int64_t steps, bool decode) {
    if (group != kGroup) {
      if constexpr (kGroup > 1) run_tile<kGroup - 1>(at, group, steps, decode);
      return;
    }
    const int64_t stride = args_.input.layout.token_stride.count;
    const std::byte* x =
        args_.input.data + (first_token_ + at.token) * stride + at.k * Tile::kInputBytes;
    typename Tile::Acc* acc = sums_ + at.row * tokens_ + at.token * Tile::kRows;
    if constexpr (Tile::kDecodesInTile) {
      if (decode) {
        constexpr int64_t kPanelStride = kKBlock * Tile::kElementBytes;
        return Tile::template decoding_tile<kGroup>(mxfp4_rows(at.first_row + at.row, at.k),
                                                    panel_ + at.row * kPanelStride, x, stride,
                                                    steps, acc, at.k == 0);
      }
    }
    Tile::template tile<kGroup>(row_ + at.row, x, stride, steps, acc, at.k == 0);
  }

  // The blocks of row n from k on.
  Mxfp4Rows mxfp4_rows(int64_t n, int64_t k) const {
    const int64_t block = k / kMxfp4BlockElements;
    return {.codes = reinterpret_cast<const uint8_t*>(weights_.data) +
                     n * weights_.row_stride.count + block * kMxfp4BlockBytes.count,
            .code_stride = weights_.row_stride.count,
            .scales = weights_.scales + n * weights_.scale_stride.count + block,
            .scale_stride = weights_.scale_stride.count};
  }

  void write_out(int64_t first_row, int64_t rows) {
    for (int64_t r = 0; r < rows; r += Tile::kRows) {
      float bias[Tile::kRows] = {};
      const int64_t count = std::min<int64_t>(Tile::kRows, rows - r);
      for (int64_t i = 0; weights_.bias != nullptr && i < count; ++i) {
        bias[i] = to_float(weights_.bias[first_row + r + i]);
      }
      for (int64_t t = 0; t < tokens_; ++t) {
        float result[Tile::kRows];
        Tile::reduce(sums_ + r * tokens_ + t * Tile::kRows, result);
        float* out = args_.out + (first_token_ + t) * args_.out_stride + first_row + r;
        for (int64_t i = 0; i < count; ++i) out[i] = result[i] + bias[i];
      }
    }
  }

  const MatmulArgs& args_;
  const WeightMatrix& weights_;
  const bool is_mxfp4_;
  const int64_t k_end_;
  std::byte* const panel_;          // [kRowBlock][kKBlock] weights
  typename Tile::Acc* const sums_;  // [row tiles][tokens_][Tile::kRows]
  const std::byte* row_[kRowBlock];
  int64_t first_token_ = 0;
  int64_t tokens_ = 0;
};

}  // namespace
}  // namespace rota
