#include "quant/mxfp4.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "quant/testing/tables.h"

namespace rota {
namespace {

using testing::same;
using testing::tables;

TEST(Mxfp4, E2m1TableIsTheGolden) {
  const auto golden = tables().floats("e2m1");
  ASSERT_EQ(golden.size(), kE2m1Values.size());
  for (size_t i = 0; i < golden.size(); ++i) EXPECT_TRUE(same(golden[i], kE2m1Values[i])) << i;
}

TEST(Mxfp4, E8m0TableIsTheGolden) {
  const auto golden = tables().floats("e8m0");
  ASSERT_EQ(golden.size(), 256u);
  for (size_t i = 0; i < 256; ++i) {
    EXPECT_TRUE(same(golden[i], e8m0_to_float(static_cast<uint8_t>(i)))) << i;
  }
}

TEST(Mxfp4, EveryScaleAndCodeByteDecodesAsTheGolden) {
  const auto golden = tables().floats("mxfp4");
  ASSERT_EQ(golden.size(), size_t{256 * 256 * 2});
  for (size_t scale = 0; scale < 256; ++scale) {
    for (size_t first = 0; first < 256; first += 16) {
      std::array<uint8_t, 16> codes;
      for (size_t i = 0; i < 16; ++i) codes[i] = static_cast<uint8_t>(first + i);
      std::array<float, 32> out;
      decode_mxfp4_block(codes, static_cast<uint8_t>(scale), out);
      for (size_t i = 0; i < 32; ++i) {
        ASSERT_TRUE(same(out[i], golden[(scale * 256 + first) * 2 + i]))
            << "scale " << scale << ", code byte " << first + i / 2;
      }
    }
  }
}

TEST(Mxfp4, Bf16HoldsEveryValueOfTheScalesThatBf16ModeTakes) {
  for (int scale = 2; scale <= kMxfp4MaxBf16Scale; ++scale) {
    for (const float value : kE2m1Values) {
      const float exact = value * e8m0_to_float(static_cast<uint8_t>(scale));
      EXPECT_TRUE(same(to_float(to_bf16(exact)), exact)) << scale << " " << value;
      EXPECT_TRUE(exact == 0 || std::isnormal(exact)) << scale << " " << value;
    }
  }
}

TEST(Mxfp4, EncodeUndoesDecode) {
  for (int scale = 0; scale < kE8m0Nan; ++scale) {
    std::array<uint8_t, 16> codes;
    for (size_t i = 0; i < 16; ++i) {
      // All codes but -0, which encodes as 0.
      const size_t high = (i + 5) % 16 == 8 ? 0 : (i + 5) % 16;
      codes[i] = static_cast<uint8_t>((i == 8 ? 0 : i) | (high << 4));
    }
    std::array<float, 32> values;
    decode_mxfp4_block(codes, static_cast<uint8_t>(scale), values);
    if (std::isinf(*std::max_element(values.begin(), values.end()))) continue;  // 253, 254
    std::array<uint8_t, 16> again;
    encode_mxfp4_block(values, static_cast<uint8_t>(scale), again);
    EXPECT_EQ(codes, again) << scale;
  }
}

TEST(Mxfp4, EncodePicksTheNearestCode) {
  std::mt19937 random(5);
  std::uniform_real_distribution<float> uniform(-8.0f, 8.0f);
  for (int round = 0; round < 200; ++round) {
    std::array<float, 32> values;
    for (float& value : values) value = uniform(random);
    std::array<uint8_t, 16> codes;
    encode_mxfp4_block(values, 127, codes);
    std::array<float, 32> decoded;
    decode_mxfp4_block(codes, 127, decoded);
    for (size_t i = 0; i < 32; ++i) {
      float best = std::numeric_limits<float>::infinity();
      for (const float candidate : kE2m1Values)
        best = std::min(best, std::fabs(values[i] - candidate));
      EXPECT_EQ(std::fabs(values[i] - decoded[i]), best) << values[i];
    }
  }
}

TEST(Mxfp4, EncodeTiesGoToTheEvenCodeAndLargeValuesSaturate) {
  std::array<float, 32> values{};
  values[0] = 0.25f;  // between codes 0 and 1
  values[1] = 0.75f;  // between 1 and 2
  values[2] = -2.5f;  // between 4 and 5
  values[3] = 5.0f;   // between 6 and 7
  values[4] = 1e30f;
  values[5] = -std::numeric_limits<float>::infinity();
  values[6] = std::numeric_limits<float>::quiet_NaN();
  std::array<uint8_t, 16> codes;
  encode_mxfp4_block(values, 127, codes);
  EXPECT_EQ(codes[0], 0x20);
  EXPECT_EQ(codes[1], 0x6c);
  EXPECT_EQ(codes[2], 0xf7);
  EXPECT_EQ(codes[3], 0x00);
}

}  // namespace
}  // namespace rota
