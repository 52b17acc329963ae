// Many tokens against weights of order kOutIn: the loops that the SIMD instruction sets share. What
// differs is a Tile, a struct in the anonymous namespace of the file that includes this one:
//
//   Acc, kRows, kTokens     a vector of partial sums; the register tile is kRows x kTokens of them
//   kRowBlock               rows of weights whose panel is in L1, beside a group's inputs
//   kStep                   elements of K that one weight vector holds
//   kElementBytes           of a weight as the tile reads it: 2 (BF16 words) or 4
//   kInputBytes             of an element of prepared input
//   Code                    how weights are coded: Plain, or Mxfp4Code and the like (coded_rows.h)
//   decode(codes, scales, words)      one block of 32 elements into a row of the panel
//   kDecodesInTile          decoding_tile() decodes, multiplies and fills the panel at once, for the
//                           first group of tokens and whole tiles
//   tile<T>(rows, x, x_stride, steps, acc, fresh)   acc [T][kRows] += over `steps` vectors
//   fold(acc, factor, into, fresh)    into += acc * factor, all lanes of one sum
//   reduce(acc, out)        out [kRows] = each vector's lanes added in the ISA's fixed tree
//
// K is walked in blocks whose partial sums are kept as whole vectors, so blocking changes no bit:
// an accumulator sees its products in the order of K, whatever the number of tokens, rows and
// blocks. Where factors change along K, the sums of each kFoldColumns are folded into their total.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/coded_rows.h"
#include "kernels/matmul.h"
#include "platform/memory.h"

namespace rota {
namespace {

template <class Tile>
class MatmulDriver {
  using Acc = typename Tile::Acc;
  using Code = typename Tile::Code;

 public:
  static constexpr int64_t kRowBlock = Tile::kRowBlock;
  static constexpr int64_t kKBlock = 512;        // 1 KiB of words a row
  static constexpr int64_t kMaxTokenBlock = 72;  // tokens whose partial sums are in L2
  static_assert(kRowBlock % Tile::kRows == 0);

  static constexpr int64_t kPanelBytes = kRowBlock * kKBlock * Tile::kElementBytes;
  static constexpr int64_t kSumBytes =
      kRowBlock * kMaxTokenBlock * static_cast<int64_t>(sizeof(Acc));
  static constexpr int64_t kScratchBytes = kPanelBytes + kSumBytes * (Code::kHasFactors ? 2 : 1);

  explicit MatmulDriver(const MatmulArgs& args)
      : args_(args),
        weights_(*args.weights),
        folds_(Code::kHasFactors && weights_.folds()),
        k_end_(round_up(weights_.in.logical(), Code::kCoded ? kCodedBlock : Tile::kStep)),
        k_block_(folds_ ? kFoldColumns : kKBlock),
        panel_(args.scratch.data()),
        sums_(reinterpret_cast<Acc*>(args.scratch.data() + kPanelBytes)),
        totals_(reinterpret_cast<Acc*>(args.scratch.data() + kPanelBytes + kSumBytes)) {}

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
    for (int64_t k = 0; k < k_end_; k += k_block_) {
      const int64_t count = std::min(k_block_, k_end_ - k);
      const bool in_tile = decodes_in_tile(k, count);
      find_rows(first_row, rows, k, count);
      for (int64_t t = 0; t < tokens_;) {
        const int64_t group = next_group(tokens_ - t);
        for (int64_t r = 0; r < rows; r += Tile::kRows) {
          const TilePlace place{.first_row = first_row, .row = r, .token = t, .k = k};
          const bool decode = in_tile && t == 0 && is_whole_tile(rows, r);
          run_tile<Tile::kTokens>(place, group, count / Tile::kStep, decode);
        }
        t += group;
      }
      if constexpr (Code::kHasFactors) {
        if (folds_) fold(first_row, rows, k);
      }
    }
    write_out(first_row, rows);
  }

  // No group is left with a single token where two smaller ones can share the work.
  static int64_t next_group(int64_t left) {
    if (left == Tile::kTokens + 1) return (left + 1) / 2;
    return std::min<int64_t>(left, Tile::kTokens);
  }

  // Whole tiles only, since a tile's rows are a stride apart then, and whole blocks: what lies
  // behind the last column is not to be read.
  bool decodes_in_tile(int64_t k, int64_t count) const {
    return Tile::kDecodesInTile && k + count <= weights_.in.logical();
  }
  static bool is_whole_tile(int64_t rows, int64_t r) {
    return round_up(r + 1, Tile::kRows) <= rows;
  }

  // Points row_ at `count` elements from k on of each row: where they lie, or in the panel. Rows
  // that fill up the last tile repeat the last one; their results are dropped.
  void find_rows(int64_t first_row, int64_t rows, int64_t k, int64_t count) {
    const bool in_tile = decodes_in_tile(k, count);
    for (int64_t r = 0; r < rows; ++r) {
      std::byte* copy = panel_ + r * kKBlock * Tile::kElementBytes;
      prefetch_row(first_row + r + kRowBlock, k, count);
      if constexpr (Code::kCoded) {
        if (!in_tile || !is_whole_tile(rows, r)) decode_row(first_row + r, k, count, copy);
        row_[r] = copy;
      } else {
        row_[r] = plain_row(first_row + r, k, count, copy);
      }
    }
    for (int64_t r = rows; r < round_up(rows, Tile::kRows); ++r) row_[r] = row_[rows - 1];
  }

  // Where the elements lie, or in `copy` with zeros behind them where the row is too short.
  const std::byte* plain_row(int64_t n, int64_t k, int64_t count, std::byte* copy) const {
    const std::byte* there =
        weights_.data + n * weights_.row_stride.count + k * Tile::kElementBytes;
    if (k + count <= weights_.in.padded()) return there;
    const int64_t bytes = (weights_.in.logical() - k) * Tile::kElementBytes;
    std::memcpy(copy, there, static_cast<size_t>(bytes));
    std::memset(copy + bytes, 0, static_cast<size_t>(count * Tile::kElementBytes - bytes));
    return copy;
  }

  // Into L2: the same piece of the row that takes this one's place in the next row block.
  void prefetch_row(int64_t n, int64_t k, int64_t count) const {
    constexpr int64_t kBlock = Code::kCoded ? Code::kCodeBytes : kCodedBlock * Tile::kElementBytes;
    const std::byte* from =
        weights_.data + n * weights_.row_stride.count + k / kCodedBlock * kBlock;
    for (int64_t i = 0; i < count / kCodedBlock * kBlock; i += 64) {
      __builtin_prefetch(from + i, 0, 2);
    }
  }

  void decode_row(int64_t n, int64_t k, int64_t count, std::byte* words) const {
    CodedRows row = coded_rows<Code>(weights_, n, k);
    const int64_t left = weights_.in.logical() - k;
    for (int64_t i = 0; i < count; i += kCodedBlock) {
      const CodedTail<Code> tail(row, left - i);
      Tile::decode(tail.codes(), tail.scales(), words + i * Tile::kElementBytes);
      row.codes += Code::kCodeBytes;
      row.scales += Code::kScaleBytes;
    }
  }

  // The sums over columns [k, k + kFoldColumns) times each row's factor there, added to the totals.
  void fold(int64_t first_row, int64_t rows, int64_t k) {
    const int64_t block = k / weights_.factors.columns;
    for (int64_t r = 0; r < rows; r += Tile::kRows) {
      float factor[Tile::kRows];
      for (int64_t i = 0; i < Tile::kRows; ++i) {
        factor[i] = weights_.factors.row(first_row + std::min(r + i, rows - 1))[block];
      }
      const int64_t at = r * tokens_;
      for (int64_t i = 0; i < tokens_ * Tile::kRows; ++i) {
        Tile::fold(sums_[at + i], factor[i % Tile::kRows], totals_[at + i], k == 0);
      }
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
    const bool fresh = at.k == 0 || folds_;
    Acc* acc = sums_ + at.row * tokens_ + at.token * Tile::kRows;
    if constexpr (Tile::kDecodesInTile) {
      if (decode) {
        constexpr int64_t kPanelStride = kKBlock * Tile::kElementBytes;
        return Tile::template decoding_tile<kGroup>(
            coded_rows<Code>(weights_, at.first_row + at.row, at.k), panel_ + at.row * kPanelStride,
            x, stride, steps, acc, fresh);
      }
    }
    Tile::template tile<kGroup>(row_ + at.row, x, stride, steps, acc, fresh);
  }

  void write_out(int64_t first_row, int64_t rows) {
    const Acc* sums = folds_ ? totals_ : sums_;
    for (int64_t r = 0; r < rows; r += Tile::kRows) {
      const int64_t count = std::min<int64_t>(Tile::kRows, rows - r);
      for (int64_t t = 0; t < tokens_; ++t) {
        float result[Tile::kRows];
        Tile::reduce(sums + r * tokens_ + t * Tile::kRows, result);
        float* out = args_.out + (first_token_ + t) * args_.out_stride;
        for (int64_t i = 0; i < count; ++i) {
          const int64_t n = first_row + r + i;
          out[n] = weights_.finish(n, result[i]);
        }
      }
    }
  }

  const MatmulArgs& args_;
  const WeightMatrix& weights_;
  const bool folds_;
  const int64_t k_end_;
  const int64_t k_block_;
  std::byte* const panel_;  // [kRowBlock][kKBlock] weights
  Acc* const sums_;         // [row tiles][tokens_][Tile::kRows]
  Acc* const totals_;       // likewise, of folded sums
  const std::byte* row_[kRowBlock];
  int64_t first_token_ = 0;
  int64_t tokens_ = 0;
};

}  // namespace
}  // namespace rota
