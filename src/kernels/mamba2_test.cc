// Mamba2's kernels of every ISA, against ref and the goldens; states carried over any chunks.
#include "kernels/mamba2.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/kernels.h"
#include "kernels/testing/golden.h"
#include "kernels/testing/harness.h"

namespace rota {
namespace {

using testing::bits;
using testing::expect_close;
using testing::GoldenFile;
using testing::Guarded;
using testing::Random;
using testing::ref_kernels;

using Mamba2 = testing::KernelTest;
ROTA_FOR_EACH_TABLE(Mamba2);

MatrixView<const float> rows_of(const std::vector<float>& values, int64_t width) {
  return {values.data(), static_cast<int64_t>(values.size()) / width, Extent(width), width};
}
MatrixView<float> rows_of(const Guarded<float>& values, int64_t width) {
  return {values.data(), static_cast<int64_t>(values.span().size()) / width, Extent(width), width};
}

// Ways to cut `tokens` into chunks, none of which may show.
std::vector<std::vector<int64_t>> cuts(int64_t tokens) {
  std::vector<std::vector<int64_t>> all{{tokens}};
  for (const int64_t each : {1, 2, 3, 16, 64}) {
    std::vector<int64_t> cut;
    for (int64_t at = 0; at < tokens; at += each) cut.push_back(std::min(each, tokens - at));
    all.push_back(cut);
  }
  return all;
}

struct Conv {
  int64_t channels = 0;
  int64_t kernel = 0;
  std::vector<float> x;       // [T, channels]
  std::vector<float> weight;  // [kernel, channels]
  std::vector<float> bias;

  static Conv random(int64_t tokens, int64_t channels, int64_t kernel, uint32_t seed) {
    Random random(seed);
    return {channels, kernel, random.normal(tokens * channels), random.normal(kernel * channels),
            random.normal(channels)};
  }
  int64_t tokens() const { return static_cast<int64_t>(x.size()) / channels; }
};

struct ConvResult {
  std::vector<float> out;
  std::vector<float> state;
};

ConvResult run(const KernelTable& kernels, const Conv& conv, const std::vector<int64_t>& cut) {
  const Guarded<float> x(conv.x);
  const Guarded<float> weight(conv.weight);
  const Guarded<float> bias(conv.bias);
  const Guarded<float> out(conv.x.size());
  const Guarded<float> state(static_cast<size_t>((conv.kernel - 1) * conv.channels));
  int64_t at = 0;
  for (const int64_t tokens : cut) {
    kernels.causal_conv({.x = rows_of(x, conv.channels).row_range(at, tokens),
                         .kernel = conv.kernel,
                         .weight = weight.data(),
                         .weight_stride = conv.channels,
                         .bias = bias.data(),
                         .state = state.data(),
                         .state_stride = conv.channels,
                         .out = rows_of(out, conv.channels).row_range(at, tokens)});
    at += tokens;
  }
  return {out.values(), state.values()};
}

TEST_P(Mamba2, ConvolutionMatchesGoldens) {
  const GoldenFile golden("mamba2.safetensors");
  Conv conv{.channels = 160, .kernel = 4, .x = golden.floats("xbc"), .weight = {}, .bias = {}};
  const std::vector<float> stored = golden.floats("conv1d.weight");  // [C, 1, 4]
  conv.weight.resize(stored.size());
  for (size_t c = 0; c < 160; ++c) {
    for (size_t j = 0; j < 4; ++j) conv.weight[j * 160 + c] = stored[c * 4 + j];
  }
  conv.bias = golden.floats("conv1d.bias");
  const ConvResult found = run(kernels(), conv, {conv.tokens()});
  expect_close(found.out, golden.floats("conv.out"), 1e-5, 1e-6, "conv.out");
  EXPECT_EQ(found.state, golden.floats("conv_state"));
}

TEST_P(Mamba2, ConvolutionMatchesRefForOddWidthsAndKernels) {
  for (const int64_t channels : {1, 7, 16, 33, 161}) {
    for (const int64_t kernel : {2, 3, 4, 7}) {
      const Conv conv = Conv::random(9, channels, kernel, 11);
      const ConvResult want = run(ref_kernels(), conv, {9});
      const ConvResult found = run(kernels(), conv, {9});
      expect_close(found.out, want.out, 2e-6, 2e-6, std::to_string(channels));
      EXPECT_EQ(found.state, want.state);
    }
  }
}

TEST_P(Mamba2, ConvolutionInAnyChunksGivesTheSameBits) {
  const Conv conv = Conv::random(75, 37, 4, 12);
  const ConvResult whole = run(kernels(), conv, {75});
  for (const auto& cut : cuts(75)) {
    const ConvResult found = run(kernels(), conv, cut);
    EXPECT_EQ(bits(found.out), bits(whole.out)) << "chunks of " << cut.front();
    EXPECT_EQ(bits(found.state), bits(whole.state)) << "chunks of " << cut.front();
  }
}

// One head over T tokens.
struct Scan {
  int64_t head_dim = 0;
  int64_t size = 0;
  std::vector<float> x;   // [T, P]
  std::vector<float> b;   // [T, N]
  std::vector<float> c;   // [T, N]
  std::vector<float> dt;  // [T]
  float dt_bias = 0;
  float a = 0;
  float d = 0;

  static Scan random(int64_t tokens, int64_t head_dim, int64_t size, uint32_t seed) {
    Random random(seed);
    return {head_dim,
            size,
            random.normal(tokens * head_dim),
            random.normal(tokens * size),
            random.normal(tokens * size),
            random.normal(tokens),
            -1.0f,
            -0.3f,
            0.7f};
  }
  int64_t tokens() const { return static_cast<int64_t>(dt.size()); }
};

struct ScanResult {
  std::vector<float> y;
  std::vector<float> state;  // [N, P]
};

enum class Place { kApart, kInPlace };

ScanResult run(const KernelTable& kernels, const Scan& scan, const std::vector<int64_t>& cut,
               Place place = Place::kApart) {
  const Guarded<float> x(scan.x);
  const Guarded<float> b(scan.b);
  const Guarded<float> c(scan.c);
  const Guarded<float> y(scan.x.size());
  const Guarded<float> state(static_cast<size_t>(scan.size * scan.head_dim));
  const Guarded<float>& out = place == Place::kInPlace ? x : y;
  int64_t at = 0;
  for (const int64_t tokens : cut) {
    kernels.ssm_scan({.x = rows_of(x, scan.head_dim).row_range(at, tokens),
                      .b = rows_of(b, scan.size).row_range(at, tokens),
                      .c = rows_of(c, scan.size).row_range(at, tokens),
                      .dt = scan.dt.data() + at,
                      .dt_stride = 1,
                      .dt_bias = scan.dt_bias,
                      .a = scan.a,
                      .d = scan.d,
                      .state = state.data(),
                      .y = rows_of(out, scan.head_dim).row_range(at, tokens)});
    at += tokens;
  }
  return {out.values(), state.values()};
}

// Columns [first, first + count) of rows of `width`.
std::vector<float> columns(const std::vector<float>& rows, size_t width, size_t first,
                           size_t count) {
  std::vector<float> out;
  for (size_t at = first; at < rows.size(); at += width) {
    out.insert(out.end(), rows.begin() + static_cast<std::ptrdiff_t>(at),
               rows.begin() + static_cast<std::ptrdiff_t>(at + count));
  }
  return out;
}

// The goldens' head: 6 heads of 16 in 2 groups, state 16; conv.out is x, B and C of all of them.
Scan golden_scan(const GoldenFile& golden, size_t head) {
  const std::vector<float> xbc = golden.floats("conv.out");
  const size_t group = head / 3;
  Scan scan;
  scan.head_dim = 16;
  scan.size = 16;
  scan.x = columns(xbc, 160, head * 16, 16);
  scan.b = columns(xbc, 160, 96 + group * 16, 16);
  scan.c = columns(xbc, 160, 128 + group * 16, 16);
  scan.dt = columns(golden.floats("dt"), 6, head, 1);
  scan.dt_bias = golden.floats("dt_bias")[head];
  scan.a = -std::exp(golden.floats("A_log")[head]);
  scan.d = golden.floats("D")[head];
  return scan;
}

TEST_P(Mamba2, ScanMatchesGoldens) {
  const GoldenFile golden("mamba2.safetensors");
  for (size_t head = 0; head < 6; ++head) {
    const Scan scan = golden_scan(golden, head);
    const std::vector<float> want = columns(golden.floats("y"), 96, head * 16, 16);
    expect_close(run(kernels(), scan, {75}).y, want, 1e-5, 1e-5, "head " + std::to_string(head));
    for (const int64_t tokens : {1, 32, 33, 75}) {
      const std::vector<float> stored =
          golden.floats("state." + std::to_string(tokens - 1));  // [6, P, N]
      std::vector<float> state(256);
      for (size_t p = 0; p < 16; ++p) {
        for (size_t n = 0; n < 16; ++n) state[n * 16 + p] = stored[(head * 16 + p) * 16 + n];
      }
      expect_close(run(kernels(), scan, {tokens}).state, state, 1e-5, 1e-5, "state");
    }
  }
}

TEST_P(Mamba2, ScanMatchesRefForOddSizes) {
  for (const int64_t head_dim : {1, 5, 16, 24, 63, 64, 80}) {
    for (const int64_t size : {1, 16, 19, 128}) {
      const Scan scan = Scan::random(20, head_dim, size, 13);
      const ScanResult want = run(ref_kernels(), scan, {20});
      const ScanResult found = run(kernels(), scan, {20});
      const std::string what = std::to_string(head_dim) + " x " + std::to_string(size);
      expect_close(found.y, want.y, 1e-5, 1e-5 * std::sqrt(static_cast<double>(size)), what);
      expect_close(found.state, want.state, 1e-5, 1e-5, what);
    }
  }
}

TEST_P(Mamba2, ScanInAnyChunksOrInPlaceGivesTheSameBits) {
  const Scan scan = Scan::random(75, 29, 21, 14);
  const ScanResult whole = run(kernels(), scan, {75});
  for (const auto& cut : cuts(75)) {
    for (const Place place : {Place::kApart, Place::kInPlace}) {
      const ScanResult found = run(kernels(), scan, cut, place);
      EXPECT_EQ(bits(found.y), bits(whole.y)) << "chunks of " << cut.front();
      EXPECT_EQ(bits(found.state), bits(whole.state)) << "chunks of " << cut.front();
    }
  }
}

// A step of 0, of 100 and the state's whole forgetting: nothing overflows, nothing is clamped.
TEST_P(Mamba2, ScanOfExtremeSteps) {
  Scan scan = Scan::random(3, 4, 4, 15);
  scan.dt = {-200.0f, 100.0f, -5.0f};
  const ScanResult want = run(ref_kernels(), scan, {3});
  expect_close(run(kernels(), scan, {3}).y, want.y, 2e-5, 1e-6, "extreme steps");
  scan.dt = {-9.0f, -9.0f, -9.0f};  // softplus(-10) = 4.5e-5, below every time_step_min
  const ScanResult small = run(kernels(), scan, {1});
  const float step = std::log1p(std::exp(-10.0f));
  EXPECT_NEAR(small.state[0] / (step * scan.x[0] * scan.b[0]), 1, 1e-5);
}

std::vector<float> gated(const KernelTable& kernels, const std::vector<float>& y,
                         const std::vector<float>& z, const std::vector<Bf16>& weight,
                         int64_t group) {
  const auto width = static_cast<int64_t>(weight.size());
  const Guarded<float> in(y);
  const Guarded<float> gates(z);
  const Guarded<Bf16> guarded_weight(weight);
  const Guarded<float> out(y.size());
  kernels.gated_norm({.y = rows_of(in, width),
                      .z = rows_of(gates, width),
                      .weight = guarded_weight.data(),
                      .group = group,
                      .eps = 1e-5f,
                      .out = rows_of(out, width)});
  return out.values();
}

// The goldens' weight is float32, the kernel's BF16: compared without it.
TEST_P(Mamba2, GatedNormMatchesGoldens) {
  const GoldenFile golden("mamba2.safetensors");
  const std::vector<float> weight = golden.floats("norm.weight");
  std::vector<float> want = golden.floats("gated");
  for (size_t i = 0; i < want.size(); ++i) want[i] /= weight[i % weight.size()];
  const std::vector<Bf16> ones(weight.size(), to_bf16(1.0f));
  expect_close(gated(kernels(), golden.floats("y"), golden.floats("z"), ones, 48), want, 1e-5, 1e-6,
               "gated");
}

TEST_P(Mamba2, GatedNormMatchesRefForOddGroups) {
  Random random(16);
  for (const int64_t group : {1, 7, 16, 45, 512}) {
    const int64_t width = 3 * group;
    const std::vector<float> y = random.normal(2 * width);
    const std::vector<float> z = random.normal(2 * width, 3.0f);
    const std::vector<Bf16> weight = random.bf16(width);
    expect_close(gated(kernels(), y, z, weight, group), gated(ref_kernels(), y, z, weight, group),
                 3e-6, 1e-7, "group of " + std::to_string(group));
  }
}

TEST_P(Mamba2, GatedNormInPlace) {
  Random random(17);
  std::vector<float> y = random.normal(2 * 90);
  const std::vector<float> z = random.normal(2 * 90);
  const std::vector<Bf16> weight = random.bf16(90);
  const std::vector<float> want = gated(kernels(), y, z, weight, 45);
  const MatrixView<float> view(y.data(), 2, Extent(90), 90);
  kernels().gated_norm({.y = view,
                        .z = rows_of(z, 90),
                        .weight = weight.data(),
                        .group = 45,
                        .eps = 1e-5f,
                        .out = view});
  EXPECT_EQ(bits(y), bits(want));
}

}  // namespace
}  // namespace rota
