#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/extent.h"
#include "tensor/matrix.h"

namespace rota {
namespace {

// The width bug must not compile. An unspecified tail never becomes a zero one, an Extent never an
// integer, elements never bytes.
using Unspecified = MatrixView<float, Tail::kUnspecified>;
using Zero = MatrixView<float, Tail::kZero>;
static_assert(!std::is_convertible_v<Unspecified, Zero>);
static_assert(!std::is_constructible_v<Zero, Unspecified>);
static_assert(!std::is_constructible_v<Zero, float*, int64_t, Extent, int64_t>);
static_assert(std::is_convertible_v<Zero, Unspecified>);
static_assert(std::is_convertible_v<Zero, MatrixView<const float, Tail::kZero>>);
static_assert(std::is_convertible_v<Unspecified, MatrixView<const float>>);
static_assert(!std::is_convertible_v<MatrixView<const float>, Unspecified>);
static_assert(!std::is_assignable_v<Zero&, Unspecified>);
static_assert(
    std::is_same_v<decltype(std::declval<Zero>().column_range(0, Extent(1))), Unspecified>);
static_assert(std::is_same_v<decltype(std::declval<Zero>().truncated()), Unspecified>);
static_assert(std::is_same_v<decltype(std::declval<Zero>().row_range(0, 1)), Zero>);
static_assert(!std::is_convertible_v<int64_t, Extent>);
static_assert(!std::is_convertible_v<Extent, int64_t>);
static_assert(!std::is_convertible_v<int64_t, Bytes> && !std::is_convertible_v<Bytes, int64_t>);

TEST(Extent, RoundsUp) {
  EXPECT_EQ(Extent::rounded_up(2880, 256), Extent(2880, 3072));
  EXPECT_EQ(Extent::rounded_up(2880, 1), Extent(2880));
  EXPECT_EQ(Extent::rounded_up(2880, 32), Extent(2880));
  EXPECT_TRUE(Extent(5, 8).is_padded());
  EXPECT_FALSE(Extent(8).is_padded());
  EXPECT_EQ(to_string(Extent(2880, 3072)), "2880 -> 3072");
  EXPECT_EQ(to_string(Extent(2880)), "2880");
}

TEST(ExtentDeathTest, PaddedBelowLogicalIsOurBug) {
  EXPECT_DEATH(Extent(8, 7), "1 <= logical <= padded");
  EXPECT_DEATH(Extent(0), "1 <= logical <= padded");
}

TEST(DType, NamesGoBothWays) {
  for (int i = 0; i <= static_cast<int>(DType::kF64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
    EXPECT_GE(size_of(dtype).count, 1);
  }
  EXPECT_EQ(size_of(DType::kBf16), Bytes{2});
  EXPECT_EQ(parse_dtype("F4"), std::nullopt);
  EXPECT_EQ(parse_dtype("bf16"), std::nullopt);
}

TEST(Bf16, EveryValueSurvives) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const Bf16 value{static_cast<uint16_t>(bits)};
    const float wide = to_float(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(wide))));
    } else {
      EXPECT_EQ(to_bf16(wide).bits, bits);
    }
  }
}

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.00390625f).bits, 0x3f80);                                   // tie, to even
  EXPECT_EQ(to_bf16(1.01171875f).bits, 0x3f82);                                   // tie, to even
  EXPECT_EQ(to_bf16(std::nextafter(1.00390625f, 2.0f)).bits, 0x3f81);             // above the tie
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);             // overflows
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7f800001u)))));  // low-bit NaN
}

TEST(Matrix, RowsStartOnCacheLinesAndAreZero) {
  const Matrix<float> matrix = *Matrix<float>::allocate(3, Extent(5, 8));
  const auto view = matrix.zero_tailed();
  EXPECT_EQ(view.rows(), 3);
  EXPECT_EQ(view.stride(), 16);
  for (int64_t r = 0; r < 3; ++r) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.row(r).data()) % kCacheLine, 0u);
    EXPECT_EQ(view.row(r).size(), 5u);
    EXPECT_EQ(view.padded_row(r).size(), 8u);
    for (const float value : view.padded_row(r)) EXPECT_EQ(value, 0.0f);
  }
}

TEST(Matrix, ZeroTailsTouchesTheTailOnly) {
  const Matrix<float> matrix = *Matrix<float>::allocate(4, Extent(5, 8));
  const MatrixView<float> view = matrix.view();
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t c = 0; c < view.stride(); ++c) view.data()[r * view.stride() + c] = 1.0f;
  }
  const Zero zeroed = zero_tails(view);
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t c = 0; c < view.stride(); ++c) {
      const bool tail = 5 <= c && c < 8;
      EXPECT_EQ(zeroed.data()[r * view.stride() + c], tail ? 0.0f : 1.0f) << r << "," << c;
    }
  }
}

TEST(Matrix, SubViewsSeeTheirColumns) {
  const Matrix<float> matrix = *Matrix<float>::allocate(2, Extent(6, 8));
  for (int64_t c = 0; c < 6; ++c) matrix.view().row(1)[static_cast<size_t>(c)] = float(c);
  const auto columns = matrix.view().column_range(2, Extent(3));
  EXPECT_EQ(columns.row(1)[0], 2.0f);
  EXPECT_EQ(columns.width(), Extent(3));
  EXPECT_EQ(matrix.zero_tailed().truncated().width(), Extent(6));
  EXPECT_EQ(matrix.rows_view(1).rows(), 1);
}

// Random shapes: whatever is done to tails, logical elements are not touched, and nothing is
// written from the stride on.
TEST(Matrix, TailFunctionsTouchTailsOnlyInAnyShape) {
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    const auto pick = [&](int64_t most) { return 1 + static_cast<int64_t>(random()) % most; };
    const int64_t rows = pick(5), logical = pick(40);
    const Extent width(logical, logical + pick(20) - 1);
    const int64_t stride = width.padded() + pick(8) - 1;
    std::vector<float> data(static_cast<size_t>(rows * stride) + 1, 7.0f);
    const MatrixView<float> view(data.data(), rows, width, stride);
    const auto expect = [&](auto&& in_tail, auto&& past_padded) {
      for (int64_t i = 0; i < rows * stride; ++i) {
        const float value = data[static_cast<size_t>(i)];
        const int64_t column = i % stride;
        if (column < width.logical()) {
          ASSERT_EQ(value, 7.0f);
        } else if (column < width.padded()) {
          ASSERT_TRUE(in_tail(value));
        } else {
          ASSERT_TRUE(past_padded(value));
        }
      }
      ASSERT_EQ(data.back(), 7.0f);
    };
    const auto is = [](float wanted) { return [wanted](float value) { return value == wanted; }; };
    zero_tails(view);
    expect(is(0.0f), is(7.0f));
    poison_tails(view);
#ifdef ROTA_POISON
    const auto is_nan = [](float value) { return std::isnan(value); };
    expect(is_nan, is_nan);
#else
    expect(is(0.0f), is(7.0f));
#endif
  }
}

#ifdef ROTA_POISON
TEST(MatrixDeathTest, OutOfRangeIsOurBug) {
  const Matrix<float> matrix = *Matrix<float>::allocate(2, Extent(6, 8));
  EXPECT_DEATH(matrix.view().row(2), "row out of range");
  EXPECT_DEATH(matrix.view().row_range(1, 2), "rows out of range");
  EXPECT_DEATH(matrix.view().column_range(14, Extent(3)), "columns out of range");
}
#endif

}  // namespace
}  // namespace rota
