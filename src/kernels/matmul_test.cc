// The matmul of every instruction set against sums in double precision. Matrices, scales and inputs
// all end at a guard page here, so a read past the last row is a crash.
#include "kernels/matmul.h"

#include <gmock/gmock.h>

#include <numeric>

#include "kernels/testing/matmul_case.h"

namespace rota {
namespace {

using testing::bits;
using testing::CaseShape;
using testing::kUntouched;
using testing::multiply;
using testing::Random;
using testing::WeightCase;

struct FormatAndOrder {
  WeightFormat format;
  WeightOrder order;
  const char* name;
  int64_t factor_rows = 0;
  int64_t factor_columns = 0;
};
constexpr FormatAndOrder kFormats[] = {
    {WeightFormat::kBf16, WeightOrder::kOutIn, "bf16"},
    {WeightFormat::kBf16, WeightOrder::kInOut, "bf16_in_out"},
    {WeightFormat::kMxfp4, WeightOrder::kOutIn, "mxfp4"},
    {WeightFormat::kNvfp4, WeightOrder::kOutIn, "nvfp4"},
    {WeightFormat::kFp8, WeightOrder::kOutIn, "fp8"},
    {WeightFormat::kFp8, WeightOrder::kOutIn, "fp8_rows", 1, 0},
    {WeightFormat::kFp8, WeightOrder::kOutIn, "fp8_blocks", 128, 128},
    {WeightFormat::kFp8, WeightOrder::kOutIn, "fp8_wide_blocks", 5, 256},
    {WeightFormat::kFloat32, WeightOrder::kOutIn, "float32"}};

// Those that a format can be multiplied in.
std::vector<Compute> computes(const FormatAndOrder& format) {
  if (!is_e2m1(format.format)) return {Compute::kFloat32, Compute::kBf16};
  return {Compute::kFloat32, Compute::kBf16, Compute::kInt8};
}

Extent in_extent(const FormatAndOrder& format, int64_t logical, int64_t alignment = 1) {
  int64_t block = 1;
  if (format.format == WeightFormat::kMxfp4) block = kMxfp4BlockElements;
  if (format.format == WeightFormat::kNvfp4) block = kNvfp4BlockElements;
  return Extent::rounded_up(logical, std::lcm(alignment, block));
}

CaseShape shape_of(const FormatAndOrder& format, Extent out, Extent in, bool bias = true) {
  return {.format = format.format,
          .order = format.order,
          .out = out,
          .in = in,
          .bias = bias,
          .factor_rows = format.factor_rows,
          .factor_columns = format.factor_columns};
}

// What a token's row is rounded to: by its definition, block by block, for kInt8.
std::vector<double> rounded(std::span<const float> x, Compute compute) {
  std::vector<double> out;
  constexpr size_t kBlock = 32;
  for (size_t k = 0; k < x.size(); ++k) {
    if (compute != Compute::kInt8) {
      out.push_back(double{compute == Compute::kBf16 ? to_float(to_bf16(x[k])) : x[k]});
      continue;
    }
    const auto block = x.subspan(k / kBlock * kBlock);
    float largest = 0;
    for (const float value : block.first(std::min(kBlock, block.size()))) {
      largest = std::max(largest, std::abs(value));
    }
    const float scale = largest / 127.0f;
    out.push_back(double{scale} * double{std::nearbyint(x[k] / scale)});
  }
  return out;
}

// |result - sum in double| may be a few float roundings of the sum of magnitudes.
void expect_right(const WeightCase& weights, const CaseShape& shape, const std::vector<float>& x,
                  Compute compute, const std::vector<float>& out, const std::string& what) {
  const int64_t in = shape.in.logical(), width = shape.out.logical();
  const auto tokens = static_cast<int64_t>(x.size()) / in;
  for (int64_t t = 0; t < tokens; ++t) {
    const std::vector<double> input =
        rounded({x.data() + t * in, static_cast<size_t>(in)}, compute);
    for (int64_t n = 0; n < width; ++n) {
      double sum = weights.bias(n), magnitude = std::abs(sum);
      for (int64_t k = 0; k < in; ++k) {
        const double product = weights.weight(n, k) * input[static_cast<size_t>(k)];
        sum += product;
        magnitude += std::abs(product);
      }
      ASSERT_NEAR(double{out[static_cast<size_t>(t * width + n)]}, sum, 1e-6 * magnitude)
          << what << ", token " << t << ", column " << n;
    }
  }
}

class MatmulTest : public testing::KernelTest {
 protected:
  // Every part of the columns has the whole's bits, and nothing else is written.
  void check_column_ranges(const WeightMatrix& view, const testing::Prepared& prepared,
                           const char* name) {
    const int64_t out = view.out.logical();
    const int64_t step = kernels().column_granularity(view, prepared.input.compute);
    const std::vector<uint32_t> whole = bits(multiply(kernels(), view, prepared, {0, out}));
    for (int64_t first = 0; first < out; first += step) {
      const int64_t end = std::min(first + step * (1 + first / step % 3), out);
      const std::vector<float> part = multiply(kernels(), view, prepared, {first, end});
      for (size_t i = 0; i < part.size(); ++i) {
        const auto column = static_cast<int64_t>(i) % out;
        const bool inside = first <= column && column < end;
        ASSERT_EQ(std::bit_cast<uint32_t>(part[i]),
                  inside ? whole[i] : std::bit_cast<uint32_t>(kUntouched))
            << name << ", columns " << first << " to " << end << ", column " << column;
      }
    }
  }

  void check(const FormatAndOrder& format, int64_t out, int64_t in, int64_t tokens) {
    const CaseShape shape = shape_of(format, Extent(out), in_extent(format, in), out % 2 == 0);
    const WeightCase weights(shape, static_cast<uint32_t>(out * 1000 + in));
    const std::vector<float> x = Random(static_cast<uint32_t>(tokens)).normal(tokens * in);
    for (const Compute compute : computes(format)) {
      const std::string what = std::string(kernels().name) + " " + format.name + " [" +
                               std::to_string(out) + ", " + std::to_string(in) + "]";
      expect_right(weights, shape, x, compute, multiply(kernels(), weights.view(), x, compute),
                   what);
    }
  }
};

TEST_P(MatmulTest, SumsOverEveryLengthOfK) {
  for (const FormatAndOrder& format : kFormats) {
    for (const int64_t in : testing::lengths()) {
      check(format, 7, in, 1);
      check(format, 6, in, 4);
    }
  }
}

TEST_P(MatmulTest, EveryNumberOfOutputs) {
  for (const FormatAndOrder& format : kFormats) {
    for (const int64_t out : testing::lengths()) {
      check(format, out, 40, 1);
      check(format, out, 33, 5);
    }
  }
}

TEST_P(MatmulTest, ManyTokensAtRealWidths) {
  for (const FormatAndOrder& format : kFormats) {
    check(format, 50, 2880, 13);
    check(format, 30, 2688, 7);
    check(format, 26, 1856, 101);
    check(format, 192, 576, 9);
    check(format, 576, 192, 9);
  }
}

TEST_P(MatmulTest, NoTokensWriteNothing) {
  const WeightCase weights({.out = Extent(5), .in = Extent(40)}, 1);
  EXPECT_TRUE(multiply(kernels(), weights.view(), std::vector<float>{}, Compute::kBf16).empty());
}

// A token's bits are the same alone and among any number of others.
TEST_P(MatmulTest, SameBitsForAnyNumberOfTokens) {
  constexpr int64_t kTokens = 200, kOut = 33;
  for (const FormatAndOrder& format : kFormats) {
    for (const int64_t in : {64, 1000, 2880}) {
      const WeightCase weights(shape_of(format, Extent(kOut), in_extent(format, in)), 7);
      const std::vector<float> x = Random(8).normal(kTokens * in);
      for (const Compute compute : computes(format)) {
        std::vector<std::vector<uint32_t>> alone;
        for (int64_t t = 0; t < kTokens; ++t) {
          const std::vector<float> one(x.begin() + t * in, x.begin() + (t + 1) * in);
          alone.push_back(bits(multiply(kernels(), weights.view(), one, compute)));
        }
        for (const int64_t tokens : {2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 31, 64, 65, 97, 129, 200}) {
          const std::vector<float> some(x.begin(), x.begin() + tokens * in);
          const std::vector<uint32_t> all =
              bits(multiply(kernels(), weights.view(), some, compute));
          for (int64_t t = 0; t < tokens; ++t) {
            const std::vector<uint32_t> row(all.begin() + t * kOut, all.begin() + (t + 1) * kOut);
            ASSERT_EQ(row, alone[static_cast<size_t>(t)])
                << format.name << ", K " << in << ", token " << t << " of " << tokens;
          }
        }
      }
    }
  }
}

// Threads take column ranges of any granularity-aligned start: the same bits, and nothing else is
// written.
TEST_P(MatmulTest, SameBitsForAnyColumnRange) {
  constexpr int64_t kOut = 157, kIn = 200;
  for (const FormatAndOrder& format : kFormats) {
    const WeightCase weights(shape_of(format, Extent(kOut), in_extent(format, kIn)), 3);
    const WeightMatrix view = weights.view();
    for (const int64_t tokens : {1, 5}) {
      const std::vector<float> values = Random(4).normal(tokens * kIn);
      const MatrixView<const float> x(values.data(), tokens, Extent(kIn), kIn);
      for (const Compute compute : computes(format)) {
        check_column_ranges(view, testing::prepare(kernels(), view, x, {}, compute), format.name);
      }
    }
  }
}

// Zeros that pad K, and rows and columns that pad N, change no bit.
TEST_P(MatmulTest, SameBitsWhenPadded) {
  struct Padding {
    int64_t in, in_alignment, out_alignment;
  };
  for (const FormatAndOrder& format : kFormats) {
    for (const Padding& padding :
         {Padding{72, 128, 1}, Padding{160, 256, 16}, Padding{80, 512, 64}, Padding{2880, 256, 256},
          Padding{2880, 512, 1}, Padding{1, 3, 2}, Padding{33, 34, 3}}) {
      const WeightCase plain(shape_of(format, Extent(21), in_extent(format, padding.in)), 5);
      const WeightCase padded(shape_of(format, Extent::rounded_up(21, padding.out_alignment),
                                       in_extent(format, padding.in, padding.in_alignment)),
                              5);
      for (const int64_t tokens : {1, 3, 8}) {
        const std::vector<float> x = Random(6).normal(tokens * padding.in);
        for (const Compute compute : computes(format)) {
          ASSERT_EQ(bits(multiply(kernels(), padded.view(), x, compute)),
                    bits(multiply(kernels(), plain.view(), x, compute)))
              << format.name << ", K " << padding.in << " padded to " << padding.in_alignment;
        }
      }
    }
  }
}

// What lies behind x's logical columns is never read as a number.
TEST_P(MatmulTest, NanBehindTheLogicalColumnsOfXDoesNotMatter) {
  constexpr int64_t kIn = 72, kStride = 96, kTokens = 5;
  const std::vector<float> x = Random(9).normal(kTokens * kIn);
  std::vector<float> wide(kTokens * kStride, std::numeric_limits<float>::quiet_NaN());
  for (int64_t t = 0; t < kTokens; ++t) {
    std::copy_n(x.begin() + t * kIn, kIn, wide.begin() + t * kStride);
  }
  const MatrixView<const float> view(wide.data(), kTokens, Extent(kIn, 80), kStride);
  for (const FormatAndOrder& format : kFormats) {
    const WeightCase weights(shape_of(format, Extent(9), in_extent(format, kIn)), 2);
    for (const Compute compute : computes(format)) {
      const auto prepared = testing::prepare(kernels(), weights.view(), view, {}, compute);
      EXPECT_EQ(bits(multiply(kernels(), weights.view(), prepared, {0, 9})),
                bits(multiply(kernels(), weights.view(), x, compute)))
          << format.name;
    }
  }
}

TEST_P(MatmulTest, PrepareInputGathersRows) {
  constexpr int64_t kIn = 100;
  const std::vector<float> x = Random(10).normal(4 * kIn);
  const MatrixView<const float> view(x.data(), 4, Extent(kIn), kIn);
  const std::vector<int32_t> rows = {2, 0, 2, 3, 3};
  std::vector<float> gathered;
  for (const int32_t row : rows) {
    gathered.insert(gathered.end(), x.begin() + row * kIn, x.begin() + (row + 1) * kIn);
  }
  for (const FormatAndOrder& format : kFormats) {
    const WeightCase weights(shape_of(format, Extent(9), in_extent(format, kIn)), 2);
    for (const Compute compute : computes(format)) {
      const auto prepared = testing::prepare(kernels(), weights.view(), view, rows, compute);
      EXPECT_EQ(prepared.input.tokens, 5);
      EXPECT_EQ(bits(multiply(kernels(), weights.view(), prepared, {0, 9})),
                bits(multiply(kernels(), weights.view(), gathered, compute)))
          << format.name;
    }
  }
}

// The bits that come out are those of to_bf16, ties, infinities and NaN included.
TEST_P(MatmulTest, PrepareInputRoundsAsToBf16) {
  std::vector<uint32_t> patterns = {0x3f808000, 0x3f818000, 0x3f808001, 0x7f7fffff, 0x7f800000,
                                    0xff800000, 0x7fc00001, 0x7f800001, 0x80000000, 0x00ffffff};
  Random random(11);
  for (int i = 0; i < 500; ++i) patterns.push_back(static_cast<uint32_t>(random.engine()()));
  const WeightCase weights({.out = Extent(1), .in = Extent(1), .bias = false}, 1);
  WeightMatrix view = weights.view();
  const Bf16 one = to_bf16(1.0f);
  view.data = reinterpret_cast<const std::byte*>(&one);
  for (const uint32_t pattern : patterns) {
    const auto value = std::bit_cast<float>(pattern);
    const float want = to_float(to_bf16(value));
    const float got = multiply(kernels(), view, std::vector<float>{value}, Compute::kBf16)[0];
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << pattern;
    } else if (kernels().bf16_dot && std::abs(want) < std::numeric_limits<float>::min()) {
      EXPECT_TRUE(got == want || got == 0.0f) << pattern;  // subnormals may be taken for zero
    } else {
      EXPECT_EQ(got, want) << pattern;
    }
  }
}

// Inputs in 8 bits. Every code under every scale byte times 127, which is exact: scale 1, q 127.
TEST_P(MatmulTest, Int8TakesEveryScaleByteExactly) {
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kNvfp4}) {
    const bool mxfp4 = format == WeightFormat::kMxfp4;
    for (int64_t place = 0; place < 32; ++place) {
      const WeightCase weights(
          {.format = format, .out = Extent(256 * 16), .in = Extent(32), .bias = false}, 1);
      WeightMatrix view = weights.view();
      view.factors = {};
      std::fill_n(weights.codes(), 256 * 16 * 16, uint8_t{0});
      for (int64_t n = 0; n < 256 * 16; ++n) {
        weights.codes()[n * 16 + place / 2] = static_cast<uint8_t>(n % 16 << (place % 2 * 4));
        const auto scale = static_cast<uint8_t>(n / 16);
        if (mxfp4) {
          weights.scales()[n] = scale;
        } else {
          weights.scales()[n * 2 + place / 16] = scale;
          weights.scales()[n * 2 + 1 - place / 16] = 0x38;
        }
      }
      const int64_t tokens = 1 + place % 5;
      std::vector<float> x(static_cast<size_t>(tokens * 32), 0.0f);
      x[static_cast<size_t>((tokens - 1) * 32 + place)] = 127.0f;
      const std::vector<float> all = multiply(kernels(), view, x, Compute::kInt8);
      for (size_t n = 0; n < 256 * 16; ++n) {
        const auto scale = static_cast<uint8_t>(n / 16);
        const float want = 127 * 2 * kE2m1Values[n % 16] *
                           ((mxfp4 ? e8m0_to_float(scale) : e4m3_to_float(scale)) / 2);
        const float got = all[static_cast<size_t>(tokens - 1) * 256 * 16 + n];
        ASSERT_TRUE(std::isnan(want) ? std::isnan(got) : got == want)
            << to_string(format) << " scale " << n / 16 << ", code " << n % 16 << ": " << got
            << ", want " << want;
      }
    }
  }
}

// The largest integers there can be, all of one sign: no sum saturates or wraps.
TEST_P(MatmulTest, Int8SumsOfTheLargestNumbersAreExact) {
  constexpr int64_t kIn = 2880;
  for (const uint8_t code : {uint8_t{0x77}, uint8_t{0xff}}) {
    const WeightCase weights(
        {.format = WeightFormat::kMxfp4, .out = Extent(3), .in = Extent(kIn), .bias = false}, 1);
    std::fill_n(weights.codes(), 3 * kIn / 2, code);
    std::fill_n(weights.scales(), 3 * kIn / 32, uint8_t{127});
    for (const float sign : {1.0f, -1.0f}) {
      for (const int64_t tokens : {1, 6}) {
        const std::vector<float> x(static_cast<size_t>(tokens * kIn), sign * 127);
        for (const float got : multiply(kernels(), weights.view(), x, Compute::kInt8)) {
          EXPECT_EQ(got, kE2m1Values[code & 15] * sign * 127 * kIn);
        }
      }
    }
  }
}

// A block of x with a NaN or an infinity makes NaN of what it meets, and only of that; blocks of
// zeros and of the smallest subnormals are fine.
TEST_P(MatmulTest, Int8BlocksThatAreNotNumbers) {
  constexpr int64_t kIn = 96, kOut = 5;
  const float infinity = std::numeric_limits<float>::infinity();
  const float tiny = std::numeric_limits<float>::denorm_min();
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kNvfp4}) {
    const WeightCase weights({.format = format, .out = Extent(kOut), .in = Extent(kIn)}, 4);
    std::vector<float> x = Random(5).normal(4 * kIn);
    std::fill_n(x.begin() + 32, 32, 0.0f);
    const std::vector<float> sound =
        multiply(kernels(), weights.view(), {x.begin(), x.begin() + kIn}, Compute::kInt8);
    std::copy_n(x.begin(), kIn, x.begin() + kIn);
    std::fill_n(x.begin() + kIn + 32, 32, 100 * tiny);
    x[static_cast<size_t>(2 * kIn + 40)] = std::numeric_limits<float>::quiet_NaN();
    x[static_cast<size_t>(3 * kIn + 90)] = -infinity;
    const std::vector<float> out = multiply(kernels(), weights.view(), x, Compute::kInt8);
    for (size_t n = 0; n < kOut; ++n) {
      EXPECT_EQ(out[n], sound[n]);
      EXPECT_EQ(out[kOut + n], sound[n]);
      EXPECT_TRUE(std::isnan(out[2 * kOut + n]));
      EXPECT_TRUE(std::isnan(out[3 * kOut + n]));
    }
  }
}

// One code at a time under every scale byte: the product with 1 is the value of the tables.
class ScaleBytes : public MatmulTest {
 protected:
  // result [scale][code] for codes at element `place` of a block.
  std::vector<float> decode_all(Compute compute, int64_t place, int64_t tokens) {
    const WeightCase weights(
        {.format = WeightFormat::kMxfp4, .out = Extent(256 * 16), .in = Extent(32), .bias = false},
        1);
    for (int64_t n = 0; n < 256 * 16; ++n) {
      std::fill_n(weights.codes() + n * 16, 16, uint8_t{0});
      weights.codes()[n * 16 + place / 2] = static_cast<uint8_t>(n % 16 << (place % 2 * 4));
      weights.scales()[n] = static_cast<uint8_t>(n / 16);
    }
    std::vector<float> x(static_cast<size_t>(tokens * 32), 0.0f);
    x[static_cast<size_t>((tokens - 1) * 32 + place)] = 1.0f;
    std::vector<float> out = multiply(kernels(), weights.view(), x, compute);
    return {out.end() - 256 * 16, out.end()};
  }
};

TEST_P(ScaleBytes, All256AgreeWithTheTablesInFloat32) {
  for (const int64_t tokens : {1, 2}) {
    for (int64_t place = 0; place < 32; ++place) {
      const std::vector<float> got = decode_all(Compute::kFloat32, place, tokens);
      for (int scale = 0; scale < 256; ++scale) {
        for (size_t code = 0; code < 16; ++code) {
          const float want = kE2m1Values[code] * e8m0_to_float(static_cast<uint8_t>(scale));
          const float value = got[static_cast<size_t>(scale) * 16 + code];
          ASSERT_TRUE(std::isnan(want) ? std::isnan(value) : value == want)
              << "scale " << scale << ", code " << code << ": " << value << ", want " << want;
        }
      }
    }
  }
}

// Exact for 2 to 252. At 0 and 1 the BF16 dot product may take the subnormal ones for zero.
TEST_P(ScaleBytes, EndsInBf16) {
  for (const int64_t tokens : {1, 2}) {
    const std::vector<float> got = decode_all(Compute::kBf16, 13, tokens);
    for (int scale = 0; scale <= kMxfp4MaxBf16Scale; ++scale) {
      for (size_t code = 0; code < 16; ++code) {
        const float want = kE2m1Values[code] * e8m0_to_float(static_cast<uint8_t>(scale));
        const float value = got[static_cast<size_t>(scale) * 16 + code];
        const bool flushed = kernels().bf16_dot && scale < 2 && value == 0.0f &&
                             std::abs(want) < std::numeric_limits<float>::min();
        ASSERT_TRUE(value == want || flushed) << "scale " << scale << ", code " << code;
      }
    }
  }
}

// Every E4M3 scale byte over every E2M1 code, and every E4M3 code: the product with 1 is the value
// of the tables, in BF16 too.
class E4m3Bytes : public MatmulTest {
 protected:
  // result [256][16]: row n's weight at `place` times one.
  std::vector<float> products(const WeightMatrix& weights, Compute compute, int64_t place,
                              int64_t tokens) {
    const int64_t in = weights.in.logical(), out = weights.out.logical();
    std::vector<float> x(static_cast<size_t>(tokens * in), 0.0f);
    x[static_cast<size_t>((tokens - 1) * in + place)] = 1.0f;
    const std::vector<float> all = multiply(kernels(), weights, x, compute);
    return {all.end() - out, all.end()};
  }
};

TEST_P(E4m3Bytes, All256ScalesOfNvfp4AreExact) {
  for (int64_t place = 0; place < 48; ++place) {
    const WeightCase weights(
        {.format = WeightFormat::kNvfp4, .out = Extent(256 * 16), .in = Extent(48), .bias = false},
        1);
    WeightMatrix view = weights.view();
    view.factors = {};
    std::fill_n(weights.codes(), 256 * 16 * 24, uint8_t{0});
    for (int64_t n = 0; n < 256 * 16; ++n) {
      weights.codes()[n * 24 + place / 2] = static_cast<uint8_t>(n % 16 << (place % 2 * 4));
      for (int64_t b = 0; b < 3; ++b) {
        const bool here = place / 16 == b;
        weights.scales()[n * 3 + b] = here ? static_cast<uint8_t>(n / 16) : uint8_t{0x38};
      }
    }
    for (const Compute compute : {Compute::kFloat32, Compute::kBf16}) {
      const std::vector<float> got = products(view, compute, place, 1 + place % 3);
      for (size_t n = 0; n < got.size(); ++n) {
        const float want = kE2m1Values[n % 16] * e4m3_to_float(static_cast<uint8_t>(n / 16));
        ASSERT_TRUE(std::isnan(want) ? std::isnan(got[n]) : got[n] == want)
            << "scale " << n / 16 << ", code " << n % 16 << ": " << got[n] << ", want " << want;
      }
    }
  }
}

TEST_P(E4m3Bytes, All256CodesOfFp8AreExact) {
  for (int64_t place = 0; place < 40; ++place) {
    const WeightCase weights(
        {.format = WeightFormat::kFp8, .out = Extent(256), .in = Extent(40), .bias = false}, 1);
    WeightMatrix view = weights.view();
    view.factors = {};
    std::fill_n(weights.codes(), 256 * 40, uint8_t{0});
    for (int64_t n = 0; n < 256; ++n) weights.codes()[n * 40 + place] = static_cast<uint8_t>(n);
    for (const Compute compute : {Compute::kFloat32, Compute::kBf16}) {
      const std::vector<float> got = products(view, compute, place, 1 + place % 3);
      for (size_t n = 0; n < got.size(); ++n) {
        const float want = e4m3_to_float(static_cast<uint8_t>(n));
        ASSERT_TRUE(std::isnan(want) ? std::isnan(got[n]) : got[n] == want)
            << "code " << n << ": " << got[n] << ", want " << want;
      }
    }
  }
}

// A part of a matrix keeps the factors of the rows that it had.
TEST_P(MatmulTest, FactorsOfAPartAreThoseOfTheWhole) {
  constexpr int64_t kOut = 300, kIn = 300, kFirst = 70;
  const FormatAndOrder blocks{WeightFormat::kFp8, WeightOrder::kOutIn, "fp8_blocks", 128, 128};
  const WeightCase weights(shape_of(blocks, Extent(kOut), Extent(kIn)), 3);
  WeightMatrix part = weights.view();
  part.out = Extent(kOut - kFirst);
  part.data += kFirst * part.row_stride.count;
  part.bias += kFirst;
  part.factors.first_row = kFirst;
  const std::vector<float> x = Random(4).normal(kIn);
  const std::vector<float> whole = multiply(kernels(), weights.view(), x, Compute::kBf16);
  EXPECT_EQ(bits(multiply(kernels(), part, x, Compute::kBf16)),
            bits({whole.begin() + kFirst, whole.end()}));
}

ROTA_FOR_EACH_TABLE(MatmulTest);
ROTA_FOR_EACH_TABLE(E4m3Bytes);
ROTA_FOR_EACH_TABLE(ScaleBytes);

}  // namespace
}  // namespace rota
