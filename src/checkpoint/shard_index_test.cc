#include "checkpoint/shard_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/testing/write_safetensors.h"

namespace rota {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempFolder;

std::string message_of(std::string_view text) {
  return std::string(parse_shard_index("index.json", text).status().message());
}

std::string index_with(std::string_view shard) {
  return fmt::format(R"({{"weight_map": {{"w": "{}"}}}})", shard);
}

TEST(ShardIndex, MapsNamesToShards) {
  const auto index = parse_shard_index(
      "index.json",
      R"({"metadata": {"total_size": 3}, "weight_map": {"b": "2", "a": "1", "c": "2"}})");
  ASSERT_TRUE(index.ok()) << index.status().message();
  EXPECT_THAT(index->shards, ElementsAre("1", "2"));
  using Entry = std::pair<std::string, size_t>;
  EXPECT_THAT(index->weight_map, ElementsAre(Entry("a", 0), Entry("b", 1), Entry("c", 1)));
}

TEST(ShardIndex, SingleFileIsPreferred) {
  TempFolder folder;
  testing::write_file(folder / "model.safetensors", "");
  testing::write_file(folder / "model.safetensors.index.json", "no JSON");
  const auto index = read_shard_index(folder.path());
  ASSERT_TRUE(index.ok());
  EXPECT_TRUE(index->single_file);
}

TEST(ShardIndex, FolderWithOtherWeightsSaysWhatItHas) {
  TempFolder folder;
  testing::write_file(folder / "pytorch_model.bin", "");
  const auto index = read_shard_index(folder.path());
  EXPECT_EQ(index.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(index.status().message(), HasSubstr("it has pytorch_model.bin"));
}

TEST(ShardIndexHostile, PathOutOfTheFolder) {
  for (const char* shard : {"../other.safetensors", "a/../../b", "sub/b.safetensors"}) {
    EXPECT_THAT(message_of(index_with(shard)), HasSubstr(fmt::format("'{}' leads out", shard)));
  }
  EXPECT_THAT(message_of(index_with("..")), HasSubstr("tensor w: file name '..' is a folder"));
}

TEST(ShardIndexHostile, AbsolutePath) {
  EXPECT_THAT(message_of(index_with("/etc/passwd")), HasSubstr("is an absolute path"));
}

TEST(ShardIndexHostile, EmptyNameAndNul) {
  EXPECT_THAT(message_of(index_with("")), HasSubstr("is empty"));
  EXPECT_THAT(message_of(index_with("a\\u0000b")), HasSubstr("NUL byte"));
}

TEST(ShardIndexHostile, TensorTwice) {
  EXPECT_THAT(message_of(R"({"weight_map": {"w": "a", "w": "b"}})"),
              HasSubstr("tensor w occurs twice"));
}

TEST(ShardIndexHostile, NoWeightMap) {
  EXPECT_THAT(message_of("{}"), HasSubstr("needs an object weight_map"));
  EXPECT_THAT(message_of(R"({"weight_map": []})"), HasSubstr("needs an object weight_map"));
  EXPECT_THAT(message_of("no JSON"), HasSubstr("needs an object weight_map"));
  EXPECT_THAT(message_of(R"({"weight_map": {}})"), HasSubstr("weight_map is empty"));
  EXPECT_THAT(message_of(R"({"weight_map": {"w": 1}})"), HasSubstr("entry of w is not a string"));
}

}  // namespace
}  // namespace rota
