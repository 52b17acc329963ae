#include "quant/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "quant/testing/tables.h"

namespace rota {
namespace {

using testing::same;
using testing::tables;

TEST(Fp8, EveryCodeIsTheGoldenAndExactInBf16) {
  const auto golden = tables().floats("e4m3");
  ASSERT_EQ(golden.size(), 256u);
  for (size_t i = 0; i < 256; ++i) {
    const auto code = static_cast<uint8_t>(i);
    EXPECT_TRUE(same(golden[i], e4m3_to_float(code))) << i;
    EXPECT_TRUE(same(golden[i], to_float(e4m3_to_bf16(code)))) << i;
    EXPECT_EQ(std::isnan(golden[i]), is_e4m3_nan(code)) << i;
  }
}

TEST(Fp8, EncodingFindsEveryCodeAgain) {
  for (int i = 0; i < 256; ++i) {
    const auto code = static_cast<uint8_t>(i);
    EXPECT_EQ(float_to_e4m3(e4m3_to_float(code)), code) << i;
  }
}

// Against a search of all codes: nearest, ties to the even code.
TEST(Fp8, EncodingIsTheNearestCode) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> exponent(-12, 10);
  for (int i = 0; i < 20000; ++i) {
    const float value = std::exp2(exponent(random)) * (random() % 2 == 0 ? 1.0f : -1.0f);
    int best = 0;
    for (int code = 0; code < 0x7f; ++code) {
      const float distance =
          std::fabs(e4m3_to_float(static_cast<uint8_t>(code)) - std::fabs(value));
      const float closest = std::fabs(e4m3_to_float(static_cast<uint8_t>(best)) - std::fabs(value));
      if (distance < closest || (distance == closest && code % 2 == 0)) best = code;
    }
    const int sign = value < 0 ? 0x80 : 0;
    ASSERT_EQ(float_to_e4m3(value), best | sign) << value;
  }
  EXPECT_EQ(float_to_e4m3(0x1.1p-6f), 8);  // halfway between codes 8 and 9
  EXPECT_EQ(float_to_e4m3(0x1.3p-6f), 10);
  EXPECT_EQ(float_to_e4m3(1e9f), 0x7e);
  EXPECT_EQ(float_to_e4m3(-INFINITY), 0xfe);
}

TEST(Fp8, BlocksOf128WithPartialOnesDecodeAsTheGolden) {
  const auto codes = tables().data<uint8_t>("fp8_block_example.weight");
  const auto scales = tables().floats("fp8_block_example.scale_inv");
  const auto golden = tables().floats("fp8_block_example.out");
  constexpr size_t kRows = 150, kColumns = 200, kBlock = 128;
  std::vector<float> row(kColumns);
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t first = 0; first < kColumns; first += kBlock) {
      const size_t count = std::min(kBlock, kColumns - first);
      decode_e4m3({codes.data() + r * kColumns + first, count},
                  scales[r / kBlock * 2 + first / kBlock], std::span(row).subspan(first, count));
    }
    for (size_t c = 0; c < kColumns; ++c) ASSERT_TRUE(same(row[c], golden[r * kColumns + c]));
  }
}

}  // namespace
}  // namespace rota
