#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/testing/write_safetensors.h"

namespace rota {
namespace {

using ::testing::HasSubstr;
using testing::raw_safetensors;

Result<SafetensorsHeader> parse(std::string_view file) {
  return parse_safetensors_header("f.safetensors", std::as_bytes(std::span(file)),
                                  static_cast<int64_t>(file.size()));
}

Result<SafetensorsHeader> parse(std::string_view header, std::string_view data) {
  return parse(raw_safetensors(header, data));
}

// Expects an error that names the file and holds `text`.
void expect_fault(const Result<SafetensorsHeader>& header, std::string_view text) {
  ASSERT_FALSE(header.ok()) << "expected an error with: " << text;
  EXPECT_THAT(header.status().message(), HasSubstr("f.safetensors"));
  EXPECT_THAT(header.status().message(), HasSubstr(std::string(text)));
}

std::string length_field(uint64_t length) {
  std::string field;
  for (int shift = 0; shift < 64; shift += 8) field.push_back(static_cast<char>(length >> shift));
  return field;
}

// One tensor "t" with the given fields.
std::string one(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"({{"t":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape,
                     offsets);
}

TEST(SafetensorsHeader, ReadsEntriesSortedByName) {
  const auto header = parse(R"({"__metadata__":{"format":"pt"},
      "b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
      "a":{"dtype":"BF16","shape":[1,3],"data_offsets":[8,14],"more":1}}   )",
                            std::string(14, 'x'));
  ASSERT_TRUE(header.ok()) << header.status().message();
  ASSERT_EQ(header->entries.size(), 2u);
  EXPECT_EQ(header->entries[0].spec, (TensorSpec{"a", DType::kBf16, {1, 3}}));
  EXPECT_EQ(header->entries[1].spec, (TensorSpec{"b", DType::kF32, {2}}));
  EXPECT_EQ(header->entries[1].begin, header->data_begin);
  EXPECT_EQ(header->entries[0].end, header->file_size);
}

TEST(SafetensorsHeader, ScalarsAndEmptyTensorsAreLegal) {
  const auto header = parse(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},
      "z":{"dtype":"F32","shape":[3,0],"data_offsets":[4,4]}})",
                            "xxxx");
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header->entries[0].end - header->entries[0].begin, 4);
  EXPECT_EQ(header->entries[1].end - header->entries[1].begin, 0);
}

TEST(SafetensorsHeader, FileWithoutTensorsIsLegal) { EXPECT_TRUE(parse("{}", "").ok()); }

TEST(SafetensorsHostile, HeaderLengthZero) { expect_fault(parse("", ""), "header length 0"); }

TEST(SafetensorsHostile, FilesShorterThanTheLengthField) {
  for (size_t size = 0; size < 8; ++size) {
    expect_fault(parse(std::string(size, '\0')), fmt::format("is {} bytes long", size));
  }
}

TEST(SafetensorsHostile, HeaderLengthSevenHoldsNoTensor) {
  expect_fault(parse(R"({"a":1})", ""), "tensor a");
}

TEST(SafetensorsHostile, HeaderLengthTwoToTheSixtyThree) {
  expect_fault(parse(length_field(uint64_t{1} << 63) + "{}"), "header length 9223372036854775808");
  expect_fault(parse(length_field(~uint64_t{0}) + "{}"), "header length 18446744073709551615");
}

TEST(SafetensorsHostile, HeaderLengthBeyondTheFile) {
  expect_fault(parse(length_field(3) + "{}"), "header length 3 in a file of 10 bytes");
}

TEST(SafetensorsHostile, HeaderOverAHundredMegabytes) {
  expect_fault(parse(length_field(100'000'001) + "{}"), "header length 100000001, expected");
}

TEST(SafetensorsHostile, HeaderIsNoJsonObject) {
  expect_fault(parse("[]", ""), "not a JSON object");
  expect_fault(parse("{\"a\"", ""), "not a JSON object");
  expect_fault(parse("{} x", ""), "not a JSON object");
  expect_fault(parse("{\"\xff\":1}", ""), "not a JSON object");
}

TEST(SafetensorsHostile, HeaderNestedDeep) {
  expect_fault(parse("{\"a\":" + std::string(3000, '[') + std::string(3000, ']') + "}", ""),
               "not a JSON object");
}

TEST(SafetensorsHostile, OffsetsOverlapping) {
  expect_fault(parse(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
      "b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                     "xxxxxx"),
               "tensor b: its data overlaps that of a");
}

TEST(SafetensorsHostile, OffsetsWithAHole) {
  expect_fault(parse(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
      "b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})",
                     "xxxxxx"),
               "tensor b: 2 bytes before its data belong to no tensor");
  expect_fault(parse(one("\"U8\"", "[2]", "[1,3]"), "xxx"), "1 bytes before its data");
}

TEST(SafetensorsHostile, OffsetsReversed) {
  expect_fault(parse(one("\"U8\"", "[2]", "[2,0]"), "xx"), "tensor t: data_offsets [2, 0]");
}

TEST(SafetensorsHostile, OffsetsPastTheEnd) {
  expect_fault(parse(one("\"U8\"", "[9]", "[0,9]"), "xx"), "tensor t: its data ends at 9, past");
}

TEST(SafetensorsHostile, TrailingBytes) {
  expect_fault(parse(one("\"U8\"", "[2]", "[0,2]"), "xxyyy"), "3 trailing bytes");
  expect_fault(parse("{}", "y"), "1 trailing bytes");
}

TEST(SafetensorsHostile, ShapeAndOffsetsDisagree) {
  expect_fault(parse(one("\"BF16\"", "[3]", "[0,3]"), "xxx"), "BF16 [3] needs 6 bytes");
}

TEST(SafetensorsHostile, ShapeProductOverflow) {
  expect_fault(parse(one("\"U8\"", "[4294967296,4294967296]", "[0,0]"), ""), "overflows");
  expect_fault(parse(one("\"F64\"", "[2305843009213693952]", "[0,0]"), ""), "overflows");
}

TEST(SafetensorsHostile, ZeroDimensionOwnsNoBytes) {
  expect_fault(parse(one("\"U8\"", "[0,7]", "[0,2]"), "xx"), "U8 [0, 7] needs 0 bytes");
}

TEST(SafetensorsHostile, NegativeFractionalAndHugeNumbers) {
  expect_fault(parse(one("\"U8\"", "[-1]", "[0,1]"), "x"), "a dimension");
  expect_fault(parse(one("\"U8\"", "[1.5]", "[0,1]"), "x"), "a dimension");
  expect_fault(parse(one("\"U8\"", "[18446744073709551615]", "[0,1]"), "x"), "a dimension");
  expect_fault(parse(one("\"U8\"", "[1]", "[-1,0]"), "x"), "a data offset");
  expect_fault(parse(one("\"U8\"", "[1]", "[0,9223372036854775808]"), "x"), "a data offset");
  expect_fault(parse(one("\"U8\"", "[1]", "[0,1e0]"), "x"), "a data offset");
}

TEST(SafetensorsHostile, UnknownDtype) {
  const auto header = parse(one("\"F4\"", "[2]", "[0,1]"), "x");
  expect_fault(header, "tensor t: unknown dtype F4");
  EXPECT_EQ(header.status().code(), StatusCode::kUnsupported);
}

TEST(SafetensorsHostile, FieldsMissingOrOfTheWrongType) {
  expect_fault(parse(R"({"t":{"dtype":"U8","shape":[1]}})", "x"), "needs dtype, shape");
  expect_fault(parse(R"({"t":[]})", ""), "its entry is not an object");
  expect_fault(parse(one("8", "[1]", "[0,1]"), "x"), "dtype is not a string");
  expect_fault(parse(one("\"U8\"", "1", "[0,1]"), "x"), "shape is not a list");
  expect_fault(parse(one("\"U8\"", "[1]", "[0,1,1]"), "x"), "not a list of two");
  expect_fault(parse(one("\"U8\"", "[1]", "1"), "x"), "not a list of two");
  expect_fault(parse(R"({"__metadata__":1})", ""), "__metadata__ is not an object");
}

TEST(SafetensorsHostile, SeventeenDimensions) {
  expect_fault(parse(one("\"U8\"", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]"), "x"),
               "more than 16 dimensions");
}

TEST(SafetensorsHostile, TensorTwice) {
  expect_fault(parse(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
      "a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                     "xx"),
               "tensor a: occurs twice");
}

TEST(SafetensorsHostile, FieldTwice) {
  expect_fault(parse(R"({"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", "x"),
               "tensor a: shape occurs twice");
  expect_fault(parse(R"({"__metadata__":{},"__metadata__":{}})", ""), "__metadata__ occurs twice");
}

TEST(SafetensorsHostile, TensorNameOfAMegabyteIsCutInTheMessage) {
  const auto header =
      parse(fmt::format(R"({{"{}":{{"dtype":"F4"}}}})", std::string(1 << 20, 'n')), "");
  ASSERT_FALSE(header.ok());
  EXPECT_LT(header.status().message().size(), 1000u);
}

TEST(SafetensorsFile, TruncatedBeforeItIsRead) {
  testing::TempFolder folder;
  const std::string path = folder / "f.safetensors";
  testing::write_test_tensors(path, {{"a", DType::kBf16, {64}}});
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 2);
  expect_fault(read_safetensors_header(path, FollowSymlinks::kYes), "tensor a: its data ends at");
  std::filesystem::resize_file(path, 20);
  expect_fault(read_safetensors_header(path, FollowSymlinks::kYes), "in a file of 20 bytes");
}

TEST(SafetensorsWriter, WhatItWritesIsReadBack) {
  testing::TempFolder folder;
  const std::string path = folder / "w.safetensors";
  const std::vector<TensorSpec> specs = {
      {"b\"\n", DType::kU8, {3}}, {"a", DType::kF32, {2, 2}}, {"s", DType::kI64, {}}};
  testing::write_test_tensors(path, specs);
  const auto header = read_safetensors_header(path, FollowSymlinks::kYes);
  ASSERT_TRUE(header.ok()) << header.status().message();
  ASSERT_EQ(header->entries.size(), 3u);
  EXPECT_EQ(header->entries[0].spec, specs[1]);
  EXPECT_EQ(header->entries[1].spec, specs[0]);
  EXPECT_EQ(header->entries[2].spec, specs[2]);
  for (const auto& entry : header->entries) {
    EXPECT_EQ(entry.begin % size_of(entry.spec.dtype).count, 0);
  }
}

TEST(SafetensorsWriter, WrongSizeDuplicateNameAndMissingFolderAreErrors) {
  testing::TempFolder folder;
  const std::vector<std::byte> bytes(4);
  const std::string path = folder / "w.safetensors";
  EXPECT_FALSE(write_safetensors(path, {{{"a", DType::kF32, {2}}, bytes}}).ok());
  EXPECT_FALSE(
      write_safetensors(path, {{{"a", DType::kF32, {1}}, bytes}, {{"a", DType::kF32, {1}}, bytes}})
          .ok());
  EXPECT_FALSE(write_safetensors(folder / "none/w", {{{"a", DType::kF32, {1}}, bytes}}).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsWriter, FullDiskIsAnErrorThatLeavesNothingBehind) {
  // /dev/full refuses every write; reached through a link, as the writer makes its own file name.
  testing::TempFolder folder;
  const std::string path = folder / "w.safetensors";
  std::filesystem::create_symlink("/dev/full", fmt::format("{}.{}.partial", path, getpid()));
  const std::vector<std::byte> bytes(4);
  const Status status = write_safetensors(path, {{{"a", DType::kF32, {1}}, bytes}});
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace rota
