#include "quant/nvfp4.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>

#include "quant/fp8.h"
#include "quant/mxfp4.h"
#include "quant/testing/tables.h"

namespace rota {
namespace {

using testing::same;
using testing::tables;

TEST(Nvfp4, EveryScaleAndCodeByteDecodesAsTheGolden) {
  const auto golden = tables().floats("nvfp4");
  ASSERT_EQ(golden.size(), size_t{256 * 256 * 2});
  for (size_t scale = 0; scale < 256; ++scale) {
    for (size_t first = 0; first < 256; first += 8) {
      std::array<uint8_t, 8> codes;
      for (size_t i = 0; i < 8; ++i) codes[i] = static_cast<uint8_t>(first + i);
      std::array<float, 16> out;
      decode_nvfp4_block(codes, static_cast<uint8_t>(scale), out);
      for (size_t i = 0; i < 16; ++i) {
        ASSERT_TRUE(same(out[i], golden[(scale * 256 + first) * 2 + i]))
            << "scale " << scale << ", code byte " << first + i / 2;
      }
    }
  }
}

TEST(Nvfp4, Bf16HoldsEveryCodeUnderEveryScale) {
  for (int scale = 0; scale < 256; ++scale) {
    if (is_e4m3_nan(static_cast<uint8_t>(scale))) continue;
    for (const float code : kE2m1Values) {
      const float value = code * e4m3_to_float(static_cast<uint8_t>(scale));
      EXPECT_TRUE(same(to_float(to_bf16(value)), value)) << code << " under scale " << scale;
    }
  }
}

TEST(Nvfp4, AMatrixDecodesAsTheGolden) {
  const auto codes = tables().data<uint8_t>("nvfp4_example.weight");
  const auto scales = tables().data<uint8_t>("nvfp4_example.weight_scale");
  const float matrix_scale = tables().floats("nvfp4_example.weight_scale_2")[0];
  const auto golden = tables().floats("nvfp4_example.out");
  constexpr size_t kRows = 24, kBlocks = 6;
  for (size_t block = 0; block < kRows * kBlocks; ++block) {
    std::array<float, 16> out;
    decode_nvfp4_block(std::span<const uint8_t, 8>(codes.data() + block * 8, 8), scales[block],
                       out);
    for (size_t i = 0; i < 16; ++i) {
      // The golden rounds scale * matrix scale first.
      const float expected = golden[block * 16 + i];
      EXPECT_NEAR(out[i] * matrix_scale, expected, std::fabs(expected) * 0x1p-22f) << block;
    }
  }
}

}  // namespace
}  // namespace rota
