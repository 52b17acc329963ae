// For attention tests: one sequence's paged KV cache in one layer, with everything around it made
// dangerous: pages are NaN until stored, they lie in random order among other layers' bytes, and
// page -1 is memory that must not be touched.
//
//   KvSequence sequence(kernels, shape, 3000, seed);
//   sequence.store(0, 100, keys, values);
//   sequence.attend(0, 100, queries, {.query_heads = 8}, out);
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/testing/harness.h"
#include "tensor/extent.h"

namespace rota::testing {

struct AttendOptions {
  int64_t query_heads = 1;
  int64_t window = 0;
  const float* sinks = nullptr;
  int64_t split = 0;  // query tokens a call computes; 0: all
};

class KvSequence {
 public:
  KvSequence(const KernelTable& kernels, const KvShape& shape, int64_t positions, uint32_t seed)
      : kernels_(kernels), shape_(shape) {
    const int64_t blocks = (positions + kKvBlockTokens - 1) / kKvBlockTokens;
    page_bytes_ = kernels.kv_page_bytes(shape).count;
    // As if other layers' pages lay between, on both sides.
    stride_ = round_up(3 * page_bytes_, 4096);
    bytes_ = static_cast<size_t>(stride_ * (blocks + 2));
    void* mapped =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ROTA_CHECK(mapped != MAP_FAILED, "mmap");
    memory_ = static_cast<std::byte*>(mapped);
    std::memset(memory_, 0xff, bytes_);
    ROTA_CHECK(mprotect(memory_, static_cast<size_t>(stride_), PROT_NONE) == 0, "mprotect");
    ROTA_CHECK(
        mprotect(memory_ + stride_ * (blocks + 1), static_cast<size_t>(stride_), PROT_NONE) == 0,
        "mprotect");
    block_table_.resize(static_cast<size_t>(blocks));
    std::iota(block_table_.begin(), block_table_.end(), 0);
    Random random(seed);
    std::shuffle(block_table_.begin(), block_table_.end(), random.engine());
    scratch_.resize(static_cast<size_t>(kernels.attend_scratch_bytes(shape, 0).count) / 64 + 1);
  }
  ~KvSequence() { munmap(memory_, bytes_); }
  KvSequence(const KvSequence&) = delete;
  KvSequence& operator=(const KvSequence&) = delete;

  int64_t kv_width() const { return shape_.kv_heads * shape_.head_dim; }

  // keys and values: [tokens, kv_width()].
  void store(int64_t first, int64_t tokens, std::span<const float> keys,
             std::span<const float> values) {
    kernels_.store_kv({.shape = shape_,
                       .pages = pages(),
                       .first_position = first,
                       .tokens = tokens,
                       .keys = keys.data(),
                       .values = values.data(),
                       .stride = kv_width()});
  }

  // queries and out: [tokens, query_heads * head_dim].
  void attend(int64_t first, int64_t tokens, std::span<const float> queries,
              const AttendOptions& options, std::span<float> out) {
    AttendArgs args;
    args.shape = shape_;
    args.pages = pages();
    args.query_heads = options.query_heads;
    args.first_position = first;
    args.tokens = tokens;
    args.queries = queries.data();
    args.query_stride = options.query_heads * shape_.head_dim;
    args.out = out.data();
    args.out_stride = args.query_stride;
    args.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    args.window = options.window;
    args.sinks = options.sinks;
    args.scratch = std::as_writable_bytes(std::span(scratch_));
    const int64_t split = options.split > 0 ? options.split : tokens;
    for (int64_t begin = 0; begin < tokens; begin += split) {
      args.token_begin = begin;
      args.token_end = std::min(begin + split, tokens);
      for (args.kv_head = 0; args.kv_head < shape_.kv_heads; ++args.kv_head) kernels_.attend(args);
    }
  }

  // What an engine does with pages that a window has left behind.
  void free_blocks_before(int64_t position) {
    for (int64_t block = 0; (block + 1) * kKvBlockTokens <= position; ++block) {
      block_table_[static_cast<size_t>(block)] = -1;
    }
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  // Page 0 of this layer begins one page after the guard, so page -1 lies in it.
  KvPages pages() const {
    return {.base = memory_ + stride_, .page_stride = {stride_}, .block_table = block_table_};
  }

  const KernelTable& kernels_;
  KvShape shape_;
  int64_t page_bytes_ = 0;
  int64_t stride_ = 0;
  size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
  std::vector<int32_t> block_table_;
  std::vector<Line> scratch_;
};

}  // namespace rota::testing
