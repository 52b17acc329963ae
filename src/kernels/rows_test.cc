// Row-wise and element-wise kernels of every ISA, against ref and the goldens.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/kernels.h"
#include "kernels/rope_table.h"
#include "kernels/testing/golden.h"
#include "kernels/testing/harness.h"

namespace rota {
namespace {

using testing::bits;
using testing::expect_close;
using testing::GoldenFile;
using testing::Guarded;
using testing::lengths;
using testing::Random;
using testing::ref_kernels;

using Rows = testing::KernelTest;
ROTA_FOR_EACH_TABLE(Rows);

std::string length_name(int64_t n) { return "length " + std::to_string(n); }

std::vector<float> normed(const KernelTable& kernels, const std::vector<float>& x,
                          const std::vector<Bf16>& weight) {
  const Guarded<float> in(x);
  const Guarded<Bf16> guarded_weight(weight);
  const Guarded<float> out(x.size());
  kernels.rms_norm(
      {.x = in.row(), .weight = guarded_weight.data(), .eps = 1e-5f, .out = out.row()});
  return out.values();
}

TEST_P(Rows, RmsNormMatchesRef) {
  Random random(1);
  for (const int64_t n : lengths()) {
    const std::vector<float> x = random.normal(n, 3.0f);
    const std::vector<Bf16> weight = random.bf16(n);
    expect_close(normed(kernels(), x, weight), normed(ref_kernels(), x, weight), 1e-6, 1e-30,
                 length_name(n));
  }
}

TEST_P(Rows, RmsNormOfTinyAndHugeRows) {
  const std::vector<Bf16> weight(100, to_bf16(1.0f));
  for (const float scale : {0.0f, 1e-15f, 1e15f}) {
    std::vector<float> x = Random(2).normal(100, 1.0f);
    for (float& value : x) value *= scale;
    expect_close(normed(kernels(), x, weight), normed(ref_kernels(), x, weight), 1e-6, 0,
                 "scale " + std::to_string(scale));
  }
}

// One row alone, in the middle of others, in place, or with NaN in its tail: the same bits.
TEST_P(Rows, RmsNormOfARowDependsOnItsLogicalElementsAlone) {
  constexpr int64_t kWidth = 45;
  constexpr int64_t kStride = 64;
  Random random(3);
  const std::vector<Bf16> weight = random.bf16(kWidth);
  std::vector<float> rows(3 * kStride, std::numeric_limits<float>::quiet_NaN());
  std::vector<float> want;
  for (int64_t t = 0; t < 3; ++t) {
    const std::vector<float> x = random.normal(kWidth);
    std::copy(x.begin(), x.end(), rows.begin() + t * kStride);
    const std::vector<float> alone = normed(kernels(), x, weight);
    want.insert(want.end(), alone.begin(), alone.end());
  }
  const MatrixView<float> view(rows.data(), 3, Extent(kWidth, kStride), kStride);
  kernels().rms_norm({.x = view, .weight = weight.data(), .eps = 1e-5f, .out = view});
  for (int64_t t = 0; t < 3; ++t) {
    const auto row = std::span<const float>(rows).subspan(static_cast<size_t>(t * kStride));
    EXPECT_EQ(bits(row.first(kWidth)),
              bits(std::span<const float>(want).subspan(static_cast<size_t>(t * kWidth), kWidth)));
    EXPECT_TRUE(std::isnan(row[kWidth])) << "the tail was written";
  }
}

TEST_P(Rows, SoftmaxMatchesRef) {
  Random random(4);
  for (const int64_t n : lengths()) {
    const std::vector<float> x = random.normal(n, 8.0f);
    const Guarded<float> got(x);
    std::vector<float> want = x;
    kernels().softmax(got.span());
    ref_kernels().softmax(want);
    // x - max is rounded to float32: at a difference of 50 that alone is 4e-6 of its exponential.
    expect_close(got.span(), want, 5e-6, 1e-37, length_name(n));
  }
}

TEST_P(Rows, SoftmaxOfExtremeLogits) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> row{-1e4f, 1e30f, -infinity, 1e30f, -3.0f};
  kernels().softmax(row);
  EXPECT_EQ(row, (std::vector<float>{0, 0.5f, 0, 0.5f, 0}));
  row = {-1e30f};
  kernels().softmax(row);
  EXPECT_EQ(row, std::vector<float>{1});
}

std::vector<float> swiglu(const KernelTable& kernels, const std::vector<float>& gate_up,
                          float limit) {
  const Guarded<float> in(gate_up);
  const Guarded<float> out(gate_up.size() / 2);
  kernels.swiglu_oai({.gate_up = in.row(), .alpha = 1.702f, .limit = limit, .out = out.row()});
  return out.values();
}

TEST_P(Rows, SwigluOaiMatchesRef) {
  Random random(5);
  for (const int64_t n : lengths()) {
    const std::vector<float> x = random.normal(2 * n, 5.0f);
    for (const float limit : {7.0f, 1000.0f}) {
      expect_close(swiglu(kernels(), x, limit), swiglu(ref_kernels(), x, limit), 2e-6, 1e-30,
                   length_name(n));
    }
  }
}

std::vector<float> silu_mul(const KernelTable& kernels, const std::vector<float>& gate,
                            const std::vector<float>& up) {
  const Guarded<float> guarded_gate(gate);
  const Guarded<float> guarded_up(up);
  const Guarded<float> out(gate.size());
  kernels.silu_mul({.gate = guarded_gate.row(), .up = guarded_up.row(), .out = out.row()});
  return out.values();
}

TEST_P(Rows, SiluMulMatchesRef) {
  Random random(6);
  for (const int64_t n : lengths()) {
    const std::vector<float> gate = random.normal(n, 5.0f);
    const std::vector<float> up = random.normal(n);
    const std::vector<float> want = silu_mul(ref_kernels(), gate, up);
    expect_close(silu_mul(kernels(), gate, up), want, 1e-6, 1e-35, length_name(n));
    std::vector<float> in_place = gate;
    const MatrixView<float> view(in_place.data(), 1, Extent(n), n);
    kernels().silu_mul(
        {.gate = view, .up = MatrixView<const float>(up.data(), 1, Extent(n), n), .out = view});
    expect_close(in_place, want, 1e-6, 1e-35, "in place, " + length_name(n));
  }
}

// A fine sweep: silu(x) * 1 / x is the sigmoid, and so the exponential.
TEST_P(Rows, SigmoidIsWithinTwoRoundingsOverItsWholeRange) {
  std::vector<float> x;
  for (double value = -80; value < 80; value += 0.00037) x.push_back(static_cast<float>(value));
  const std::vector<float> got = silu_mul(kernels(), x, std::vector<float>(x.size(), 1.0f));
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = double{x[i]} / (1 + std::exp(-double{x[i]}));
    ASSERT_NEAR(got[i] / want, 1.0, 3.5e-7) << "x = " << x[i];
  }
}

std::vector<float> relu2(const KernelTable& kernels, const std::vector<float>& x) {
  const Guarded<float> in(x);
  const Guarded<float> out(x.size());
  kernels.relu2(in.row(), out.row());
  return out.values();
}

TEST_P(Rows, Relu2EqualsRefBitForBit) {
  Random random(10);
  for (const int64_t n : lengths()) {
    std::vector<float> x = random.normal(n, 5.0f);
    const std::vector<float> want = relu2(ref_kernels(), x);
    ASSERT_EQ(bits(relu2(kernels(), x)), bits(want)) << length_name(n);
    const MatrixView<float> view(x.data(), 1, Extent(n), n);
    kernels().relu2(view, view);
    ASSERT_EQ(bits(x), bits(want)) << "in place, " << length_name(n);
  }
}

TEST_P(Rows, ActivationsMatchGoldens) {
  const GoldenFile golden("activations.safetensors");
  expect_close(relu2(kernels(), golden.floats("up")), golden.floats("relu2.out"), 1e-6, 1e-30,
               "relu2");
  expect_close(swiglu(kernels(), golden.floats("swiglu_oai.in"), 7.0f),
               golden.floats("swiglu_oai.out"), 1e-6, 1e-30, "swiglu_oai");
  expect_close(silu_mul(kernels(), golden.floats("gate"), golden.floats("up")),
               golden.floats("silu_and_mul.out"), 1e-6, 1e-30, "silu_and_mul");
}

// What stands where in a row makes no difference: the vector body and the tail agree.
TEST_P(Rows, AnElementsActivationDependsOnItsValueAlone) {
  Random random(7);
  const std::vector<float> x = random.normal(2, 4.0f);
  const std::vector<float> alone = swiglu(kernels(), x, 7.0f);
  const std::vector<float> silu_alone = silu_mul(kernels(), {x[0]}, {x[1]});
  for (int64_t n = 1; n <= 70; ++n) {
    std::vector<float> row = random.normal(2 * n, 4.0f);
    for (int64_t at = 0; at < n; ++at) {
      std::vector<float> with = row;
      with[static_cast<size_t>(2 * at)] = x[0];
      with[static_cast<size_t>(2 * at + 1)] = x[1];
      ASSERT_EQ(swiglu(kernels(), with, 7.0f)[static_cast<size_t>(at)], alone[0])
          << at << " of " << n;
    }
    ASSERT_EQ(silu_mul(kernels(), std::vector<float>(static_cast<size_t>(n), x[0]),
                       std::vector<float>(static_cast<size_t>(n), x[1])),
              std::vector<float>(static_cast<size_t>(n), silu_alone[0]));
  }
}

TEST_P(Rows, RotateMatchesGoldens) {
  const GoldenFile golden("rope.safetensors");
  for (const std::string name : {"gpt_oss", "gpt_oss_d32", "theta1e6", "theta1e6_d18"}) {
    const std::vector<float> cos = golden.floats(name + ".cos");
    const std::vector<float> sin = golden.floats(name + ".sin");
    const auto tokens = static_cast<int64_t>(golden.ints("positions").size());
    const int64_t head_dim = static_cast<int64_t>(cos.size()) / tokens * 2;
    const Guarded<float> x(golden.floats(name + ".x"));
    kernels().rotate({.x = x.data(),
                      .stride = 2 * head_dim,
                      .tokens = tokens,
                      .heads = 2,
                      .head_dim = head_dim,
                      .cos = cos.data(),
                      .sin = sin.data()});
    expect_close(x.span(), golden.floats(name + ".rotated"), 1e-6, 1e-6, name);
  }
}

TEST_P(Rows, RotateMatchesRefForEveryHeadSize) {
  Random random(8);
  for (int64_t head_dim = 2; head_dim <= 160; head_dim += 2) {
    const int64_t stride = 3 * head_dim + 5;
    const std::vector<float> x = random.normal(2 * stride - 5);
    const Guarded<float> cos(random.normal(head_dim));
    const Guarded<float> sin(random.normal(head_dim));
    const Guarded<float> got(x);
    std::vector<float> want = x;
    RotateArgs args{.x = got.data(),
                    .stride = stride,
                    .tokens = 2,
                    .heads = 3,
                    .head_dim = head_dim,
                    .cos = cos.data(),
                    .sin = sin.data()};
    kernels().rotate(args);
    args.x = want.data();
    ref_kernels().rotate(args);
    expect_close(got.span(), want, 1e-6, 1e-6, "head_dim " + std::to_string(head_dim));
  }
}

// Nothing to sum: these are the same bits on every ISA.
TEST_P(Rows, ElementwiseKernelsEqualRefBitForBit) {
  Random random(9);
  for (const int64_t n : lengths()) {
    const std::vector<float> start = random.normal(n);
    const Guarded<float> what(random.normal(n));
    const Guarded<float> got(start);
    std::vector<float> want = start;
    kernels().add(got.row(), what.row());
    ref_kernels().add(MatrixView<float>(want.data(), 1, Extent(n), n), what.row());
    ASSERT_EQ(bits(got.span()), bits(want)) << "add, " << length_name(n);
    kernels().add_scaled(got.span(), 0.3f, what.span());
    ref_kernels().add_scaled(want, 0.3f, what.span());
    ASSERT_EQ(bits(got.span()), bits(want)) << "add_scaled, " << length_name(n);
    const Guarded<Bf16> narrow(random.bf16(n));
    kernels().bf16_to_float(narrow.span(), got.span());
    ref_kernels().bf16_to_float(narrow.span(), want);
    ASSERT_EQ(bits(got.span()), bits(want)) << "bf16_to_float, " << length_name(n);
  }
}

TEST_P(Rows, AddLeavesTailsAlone) {
  std::vector<float> sum(2 * 16, 1.0f);
  const std::vector<float> what(2 * 32, 2.0f);
  kernels().add(MatrixView<float>(sum.data(), 2, Extent(11, 16), 16),
                MatrixView<const float>(what.data(), 2, Extent(11, 16), 32));
  for (size_t i = 0; i < sum.size(); ++i) {
    EXPECT_EQ(sum[i], i % 16 < 11 ? 3.0f : 1.0f) << i;
  }
}

}  // namespace
}  // namespace rota
