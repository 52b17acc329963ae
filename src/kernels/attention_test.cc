// Attention of every ISA: against the goldens and ref, and that the bits do not depend on how a
// prompt is cut.
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/testing/golden.h"
#include "kernels/testing/harness.h"
#include "kernels/testing/kv_sequence.h"

namespace rota {
namespace {

using testing::AttendOptions;
using testing::bits;
using testing::expect_close;
using testing::full_run;
using testing::GoldenFile;
using testing::KvSequence;
using testing::Random;
using testing::ref_kernels;

using Attention = testing::KernelTest;
ROTA_FOR_EACH_TABLE(Attention);

// A prompt's queries, keys and values after rope.
struct Prompt {
  KvShape shape;
  int64_t query_heads;
  int64_t tokens;
  std::vector<float> queries, keys, values;

  Prompt(const KvShape& shape, int64_t query_heads, int64_t tokens, uint32_t seed)
      : shape(shape), query_heads(query_heads), tokens(tokens) {
    Random random(seed);
    queries = random.normal(tokens * query_heads * shape.head_dim, 2.0f);
    keys = random.normal(tokens * shape.kv_heads * shape.head_dim);
    values = random.normal(tokens * shape.kv_heads * shape.head_dim);
  }
  int64_t query_width() const { return query_heads * shape.head_dim; }
  int64_t kv_width() const { return shape.kv_heads * shape.head_dim; }
};

template <typename T>
std::span<T> rows_of(std::vector<std::remove_const_t<T>>& all, int64_t width, int64_t first,
                     int64_t count) {
  return std::span<T>(all).subspan(static_cast<size_t>(first * width),
                                   static_cast<size_t>(count * width));
}

// Stores and attends chunk after chunk, as an engine does; chunk sizes repeat.
std::vector<float> run(const KernelTable& kernels, Prompt& prompt, AttendOptions options,
                       const std::vector<int64_t>& chunks, bool free_behind_window = false) {
  options.query_heads = prompt.query_heads;
  KvSequence sequence(kernels, prompt.shape, prompt.tokens, 11);
  std::vector<float> out(prompt.queries.size(), std::numeric_limits<float>::quiet_NaN());
  size_t next = 0;
  for (int64_t first = 0; first < prompt.tokens;) {
    const int64_t count = std::min(chunks[next++ % chunks.size()], prompt.tokens - first);
    sequence.store(first, count, rows_of<const float>(prompt.keys, prompt.kv_width(), first, count),
                   rows_of<const float>(prompt.values, prompt.kv_width(), first, count));
    if (free_behind_window) sequence.free_blocks_before(first - options.window + 1);
    sequence.attend(first, count,
                    rows_of<const float>(prompt.queries, prompt.query_width(), first, count),
                    options, rows_of<float>(out, prompt.query_width(), first, count));
    first += count;
  }
  return out;
}

std::vector<float> run_whole(const KernelTable& kernels, Prompt& prompt,
                             const AttendOptions& options) {
  return run(kernels, prompt, options, {prompt.tokens});
}

constexpr KvShape float_shape(int64_t kv_heads, int64_t head_dim) {
  return {.kv_heads = kv_heads, .head_dim = head_dim, .format = KvFormat::kFloat32};
}
constexpr KvShape bf16_shape(int64_t kv_heads, int64_t head_dim) {
  return {.kv_heads = kv_heads, .head_dim = head_dim, .format = KvFormat::kBf16};
}

TEST_P(Attention, MatchesGoldens) {
  const GoldenFile golden("attention.safetensors");
  const std::vector<float> sinks = golden.floats("sinks");
  Prompt prompt(float_shape(2, 32), 4, 40, 0);
  prompt.queries = golden.floats("q");
  prompt.keys = golden.floats("k");
  prompt.values = golden.floats("v");
  for (const bool with_sinks : {false, true}) {
    for (const int64_t window : {0, 16}) {
      const std::string name =
          "out.sinks" + std::to_string(int{with_sinks}) + ".window" + std::to_string(window);
      AttendOptions options{.window = window};
      if (with_sinks) options.sinks = sinks.data();
      expect_close(run_whole(kernels(), prompt, options), golden.floats(name), 1e-5, 1e-6, name);
    }
  }
}

// Lengths 1..300 across head sizes, groups, windows and sinks, all of it drawn by a fixed seed.
TEST_P(Attention, MatchesRef) {
  Random random(12);
  const int64_t head_dims[] = {2, 16, 18, 24, 32, 40, 64, 96, 128};
  const int64_t groups[] = {1, 2, 3, 4, 5, 8, 16};
  for (int64_t tokens = 1; tokens <= 300; ++tokens) {
    const int64_t head_dim = head_dims[random.integer(0, 8)];
    const int64_t group = groups[random.integer(0, 6)];
    const int64_t kv_heads = random.integer(1, 2);
    const int64_t window = random.integer(0, 1) * random.integer(1, 200);
    const bool narrow = random.integer(0, 1) == 1;
    const std::vector<float> sinks = random.normal(group * kv_heads, 3.0f);
    if (!full_run() && tokens % 10 != 5 && tokens > 12) continue;

    const KvShape shape = narrow ? bf16_shape(kv_heads, head_dim) : float_shape(kv_heads, head_dim);
    Prompt prompt(shape, group * kv_heads, tokens, static_cast<uint32_t>(tokens));
    const AttendOptions options{.window = window,
                                .sinks = random.integer(0, 1) == 1 ? sinks.data() : nullptr};
    expect_close(run_whole(kernels(), prompt, options), run_whole(ref_kernels(), prompt, options),
                 1e-5, 1e-5,  // q.k in float32 is off by a few 1e-6 at 96 products of deviation 2
                 std::to_string(tokens) + " tokens, head_dim " + std::to_string(head_dim) +
                     ", group " + std::to_string(group) + ", window " + std::to_string(window));
  }
}

// Past the first range of 16 pages, so that merged ranges count.
TEST_P(Attention, LongContextMatchesRef) {
  for (const int64_t window : {0, 1500}) {
    Prompt prompt(bf16_shape(1, 64), 2, 2300, 13);
    const std::vector<float> sinks{0.5f, -1.0f};
    const AttendOptions options{.query_heads = 2, .window = window, .sinks = sinks.data()};
    const auto last_rows = [&](const KernelTable& table) {
      KvSequence sequence(table, prompt.shape, prompt.tokens, 14);
      sequence.store(0, prompt.tokens, prompt.keys, prompt.values);
      std::vector<float> out(40 * 128);
      sequence.attend(2260, 40, rows_of<const float>(prompt.queries, 128, 2260, 40), options, out);
      return out;
    };
    expect_close(last_rows(kernels()), last_rows(ref_kernels()), 1e-5, 3e-6,
                 "window " + std::to_string(window));
  }
}

// A prompt in one piece, in pieces of any size and one token at a time: the same bits.
void expect_same_bits_however_cut(const KernelTable& kernels, Prompt prompt,
                                  const AttendOptions& options) {
  const std::vector<uint32_t> whole = bits(run_whole(kernels, prompt, options));
  const std::vector<std::vector<int64_t>> cuts{{1}, {16}, {64}, {7, 1, 130, 2, 63, 65}, {1000, 3}};
  for (const std::vector<int64_t>& chunks : cuts) {
    EXPECT_TRUE(bits(run(kernels, prompt, options, chunks)) == whole)
        << "chunks from " << chunks[0] << ", window " << options.window;
  }
  AttendOptions split = options;
  split.split = 5;  // as if threads shared the tokens
  EXPECT_TRUE(bits(run_whole(kernels, prompt, split)) == whole) << "split in fives";
}

TEST_P(Attention, SameBitsHoweverAPromptIsCut) {
  const std::vector<float> sinks{0.5f, -1.0f, 2.0f, 0.0f, 1.0f, -0.5f};
  expect_same_bits_however_cut(kernels(), Prompt(bf16_shape(1, 64), 3, 200, 15),
                               {.sinks = sinks.data()});
  expect_same_bits_however_cut(kernels(), Prompt(float_shape(2, 24), 6, 333, 16),
                               {.window = 50, .sinks = sinks.data()});
  expect_same_bits_however_cut(kernels(), Prompt(bf16_shape(1, 40), 5, 270, 17), {.window = 128});
}

TEST_P(Attention, SameBitsHoweverALongPromptIsCut) {
  // ref takes one row after the other: nothing that a cut could change, and slow.
  const int64_t tokens = kernels().isa == Isa::kRef ? 300 : full_run() ? 5000 : 2500;
  const std::vector<float> sinks{0.5f, -1.0f};
  expect_same_bits_however_cut(kernels(), Prompt(bf16_shape(1, 16), 2, tokens, 18),
                               {.sinks = sinks.data()});
  expect_same_bits_however_cut(kernels(), Prompt(float_shape(1, 16), 2, tokens, 19),
                               {.window = 1100});
}

TEST_P(Attention, PagesBehindTheWindowAreNeverTouched) {
  Prompt prompt(bf16_shape(1, 32), 4, 700, 20);
  for (const int64_t window : {1, 64, 100, 128}) {
    const AttendOptions options{.window = window};
    const std::vector<uint32_t> kept = bits(run(kernels(), prompt, options, {40}));
    EXPECT_TRUE(bits(run(kernels(), prompt, options, {40}, true)) == kept) << window;
    EXPECT_TRUE(bits(run(kernels(), prompt, options, {1}, true)) == kept) << window;
  }
}

TEST_P(Attention, ASinkFarBelowChangesNoBit) {
  Prompt prompt(bf16_shape(1, 64), 8, 150, 21);
  const std::vector<float> far_below(8, -1e4f);
  EXPECT_TRUE(bits(run_whole(kernels(), prompt, {.sinks = far_below.data()})) ==
              bits(run_whole(kernels(), prompt, {})));
}

TEST_P(Attention, ASinkFarAboveTakesAllTheWeight) {
  Prompt prompt(bf16_shape(1, 64), 2, 70, 22);
  const std::vector<float> sinks{1e4f, 90.0f};
  const std::vector<float> out = run_whole(kernels(), prompt, {.sinks = sinks.data()});
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_LE(std::abs(out[i]), i / 64 % 2 == 0 ? 0.0f : 1e-20f) << i;
  }
}

// One key has weight 1: what comes out is the value as it was stored.
TEST_P(Attention, KeepsValuesRoundedToBf16) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values{0.0f,          1.0f,        1.00390625f, 1.01171875f,
                                  -3.14159274f,  0x1.fffp10f, 1e-39f,      -0x1.00ffffp-100f,
                                  0x1.0101p5f,   3.3e38f,     infinity,    -infinity,
                                  3.4028235e38f, 7.0f,        2.5e-41f,    -0.3f};
  Prompt prompt(bf16_shape(1, 16), 1, 1, 23);
  prompt.values = values;
  const std::vector<float> out = run_whole(kernels(), prompt, {});
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(out[i], to_float(to_bf16(values[i]))) << i;
  prompt.values[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(run_whole(kernels(), prompt, {})[5]));
}

// A NaN in one query is that query's affair.
TEST_P(Attention, ANanQueryStaysAlone) {
  Prompt prompt(float_shape(1, 32), 4, 90, 24);
  const std::vector<float> want = run_whole(kernels(), prompt, {});
  const size_t row = 50 * 4 + 2;
  prompt.queries[row * 32 + 7] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> got = run_whole(kernels(), prompt, {});
  for (size_t i = 0; i < got.size(); ++i) {
    if (i / 32 == row) {
      ASSERT_TRUE(std::isnan(got[i])) << i;
    } else {
      ASSERT_EQ(got[i], want[i]) << i;
    }
  }
}

// Scores far from zero, rising: every page brings a new maximum, so all that came before shrinks.
TEST_P(Attention, RisingScoresMatchRef) {
  Prompt prompt(float_shape(1, 16), 2, 1500, 25);
  for (size_t i = 0; i < prompt.keys.size(); ++i) {
    prompt.keys[i] = prompt.keys[i] * 0.1f + 0.002f * static_cast<float>(i / 16);
  }
  for (float& query : prompt.queries) query = std::abs(query) + 1.0f;
  const AttendOptions options{.query_heads = 2};
  const auto last_row = [&](const KernelTable& table) {
    KvSequence sequence(table, prompt.shape, prompt.tokens, 26);
    sequence.store(0, prompt.tokens, prompt.keys, prompt.values);
    std::vector<float> out(32);
    sequence.attend(1499, 1, rows_of<const float>(prompt.queries, 32, 1499, 1), options, out);
    return out;
  };
  expect_close(last_row(kernels()), last_row(ref_kernels()), 2e-5, 2e-5, "rising");
}

}  // namespace
}  // namespace rota
