#include "checkpoint/scan_scales.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "quant/mxfp4.h"

namespace rota {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kExperts = 2;
constexpr int64_t kRows = 3;
constexpr int64_t kBlocks = 5000;
constexpr int64_t kCount = kExperts * kRows * kBlocks;

// Scales [2, 3, 5000], all 120 until a test spoils one.
struct Scales {
  std::vector<uint8_t> values = std::vector<uint8_t>(kCount, 120);
  TensorInfo info{.name = "down_proj_scales",
                  .dtype = DType::kU8,
                  .shape = {kExperts, kRows, kBlocks},
                  .file = "shard.safetensors",
                  .byte_size = kCount,
                  .file_offset = 0,
                  .bytes = std::as_bytes(std::span(values))};
};

TEST(ScanScales, GoodScalesPass) {
  const Scales scales;
  EXPECT_FALSE(scan_mxfp4_scales(scales.info, kE8m0Nan - 1).has_value());
}

TEST(ScanScales, Exponent255IsFoundAndNamed) {
  Scales scales;
  scales.values.back() = 255;
  const auto bad = scan_mxfp4_scales(scales.info, kE8m0Nan - 1);
  ASSERT_TRUE(bad.has_value());
  EXPECT_EQ(bad->expert, 1);
  EXPECT_EQ(bad->row, 2);
  EXPECT_EQ(bad->block, 4999);
  const Status status = bad->status(scales.info);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("shard.safetensors: tensor down_proj_scales: expert 1, "
                                          "row 2, block 4999 has the scale byte 255"));
}

TEST(ScanScales, Exponents253And254AreBadInBf16ModeAlone) {
  for (const uint8_t value : {uint8_t{253}, uint8_t{254}}) {
    Scales scales;
    scales.values[7] = value;
    EXPECT_FALSE(scan_mxfp4_scales(scales.info, kE8m0Nan - 1).has_value());
    const auto bad = scan_mxfp4_scales(scales.info, kMxfp4MaxBf16Scale);
    ASSERT_TRUE(bad.has_value());
    EXPECT_EQ(bad->value, value);
    EXPECT_THAT(bad->status(scales.info).message(), HasSubstr("larger than BF16 can hold"));
  }
}

TEST(ScanScales, OneExpertAtATime) {
  Scales scales;
  scales.values[kRows * kBlocks] = 255;
  EXPECT_FALSE(scan_mxfp4_scales(scales.info, 254, 0).has_value());
  EXPECT_TRUE(scan_mxfp4_scales(scales.info, 254, 1).has_value());
}

TEST(ScanScales, EveryPositionOfShortSpansIsSeen) {
  for (size_t size = 1; size <= 300; ++size) {
    std::vector<uint8_t> values(size, 254);
    EXPECT_FALSE(find_byte_above(values, {.largest = 254}).has_value());
    for (const size_t at : {size_t{0}, size / 2, size - 1}) {
      values[at] = 255;
      EXPECT_EQ(find_byte_above(values, {.largest = 254}), static_cast<int64_t>(at));
      values[at] = 254;
    }
  }
}

// E4M3 [6, 100], all but the NaN among them.
struct Codes {
  Codes() {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<uint8_t>(i);
      if ((values[i] & 0x7f) == 0x7f) values[i] = 0xfe;
    }
  }
  std::vector<uint8_t> values = std::vector<uint8_t>(600);
  TensorInfo info{.name = "down.weight",
                  .dtype = DType::kF8E4M3,
                  .shape = {6, 100},
                  .file = "shard.safetensors",
                  .byte_size = 600,
                  .file_offset = 0,
                  .bytes = std::as_bytes(std::span(values))};
};

TEST(ScanBytes, EveryE4m3NumberPasses) {
  const Codes codes;
  EXPECT_FALSE(scan_bytes(codes.info, {.rows = 6, .columns = 100}, kE4m3Limit).has_value());
}

TEST(ScanBytes, NanOfEitherSignIsFoundAndNamed) {
  for (const uint8_t value : {uint8_t{0x7f}, uint8_t{0xff}}) {
    Codes codes;
    codes.values[5 * 100 + 99] = value;
    const auto bad = scan_bytes(codes.info, {.rows = 6, .columns = 100}, kE4m3Limit);
    ASSERT_TRUE(bad.has_value());
    const Status status = bad->status(codes.info);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(),
                HasSubstr(fmt::format("shard.safetensors: tensor down.weight: row 5, column 99 has "
                                      "the byte {:#04x} (not a number)",
                                      value)));
  }
}

TEST(ScanBytes, ARegionIsAllThatIsLookedAt) {
  const ByteRegion region{.first_row = 2, .rows = 3, .first_column = 40, .columns = 20};
  for (int64_t row = 0; row < 6; ++row) {
    for (const int64_t column : {0, 39, 40, 59, 60, 99}) {
      Codes codes;
      codes.values[static_cast<size_t>(row * 100 + column)] = 0x7f;
      const auto bad = scan_bytes(codes.info, region, kE4m3Limit);
      const bool inside = row >= 2 && row < 5 && column >= 40 && column < 60;
      ASSERT_EQ(bad.has_value(), inside) << row << ", " << column;
      if (!bad) continue;
      EXPECT_EQ(bad->row, row);
      EXPECT_EQ(bad->column, column);
    }
  }
}

// Every class of number at every place, in a tensor longer than the stretches that are looked at at
// once.
template <typename Word>
void expect_finite_found(DType dtype, std::initializer_list<Word> numbers,
                         std::initializer_list<Word> others) {
  std::vector<Word> words(5000);
  for (size_t i = 0; i < words.size(); ++i) words[i] = numbers.begin()[i % numbers.size()];
  const TensorInfo tensor{.name = "router.weight",
                          .dtype = dtype,
                          .shape = {50, 100},
                          .file = "shard.safetensors",
                          .byte_size = static_cast<int64_t>(words.size() * sizeof(Word)),
                          .file_offset = 0,
                          .bytes = std::as_bytes(std::span(words))};
  EXPECT_FALSE(find_not_finite(tensor).has_value());
  for (const Word other : others) {
    for (const size_t at : {size_t{0}, size_t{1}, size_t{2047}, size_t{2048}, words.size() - 1}) {
      const Word before = std::exchange(words[at], other);
      EXPECT_EQ(find_not_finite(tensor), static_cast<int64_t>(at)) << other;
      words[at] = before;
    }
  }
}

TEST(FindNotFinite, NanAndInfinityOfEitherSign) {
  // Zeros, the smallest and the largest number of either sign; infinities and NaN with any payload.
  expect_finite_found<uint16_t>(DType::kBf16, {0, 0x8000, 1, 0x8001, 0x7f7f, 0xff7f, 0x3f80},
                                {0x7f80, 0xff80, 0x7fc0, 0xffc0, 0x7f81, 0xffff});
  expect_finite_found<uint32_t>(
      DType::kF32, {0, 0x80000000, 1, 0x80000001, 0x7f7fffff, 0xff7fffff, 0x3f800000},
      {0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0xffffffff});
}

}  // namespace
}  // namespace rota
