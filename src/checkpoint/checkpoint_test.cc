#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>

#include "checkpoint/dummy_weights.h"
#include "checkpoint/progress.h"
#include "checkpoint/testing/write_safetensors.h"

namespace rota {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempFolder;

std::string golden(std::string_view model) {
  return fmt::format("{}/tests/goldens/models/{}", ROTA_SOURCE_DIR, model);
}

const std::string kFirst = "model-00000-of-00001.safetensors";
const std::string kSecond = "model-00001-of-00001.safetensors";

// Two shards: "a" in the first, "b" and "c" in the second.
class ShardedCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::write_test_tensors(folder_ / kFirst, {{"a", DType::kBf16, {4, 8}}});
    testing::write_test_tensors(folder_ / kSecond,
                                {{"b", DType::kF32, {3}}, {"c", DType::kU8, {5}}});
    write_index({{"a", kFirst}, {"b", kSecond}, {"c", kSecond}});
  }
  void write_index(const std::vector<std::pair<std::string, std::string>>& map) {
    std::string entries;
    for (const auto& [name, shard] : map) {
      entries += fmt::format(R"({}"{}": "{}")", entries.empty() ? "" : ", ", name, shard);
    }
    testing::write_file(folder_ / "model.safetensors.index.json",
                        fmt::format(R"({{"weight_map": {{{}}}}})", entries));
  }
  std::string fault() { return status_of(Checkpoint::open(folder_.path())).message(); }
  void replace_second(const fs::path& target) {
    fs::remove(folder_ / kSecond);
    fs::create_symlink(target, folder_ / kSecond);
  }

  TempFolder folder_;
};

TEST_F(ShardedCheckpoint, FindsTensorsOfAllShards) {
  const auto weights = Checkpoint::open(folder_.path());
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_THAT(weights->names(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(weights->total_bytes(), 64 + 12 + 5);
  EXPECT_EQ(weights->residence(), WeightsResidence::kMapped);
  EXPECT_EQ(weights->copied_bytes(), 0);
  const TensorInfo* c = weights->find("c");
  ASSERT_NE(c, nullptr);
  EXPECT_EQ(c->as<uint8_t>()[4], 4);
  EXPECT_EQ(c->file, folder_ / kSecond);
  EXPECT_EQ(weights->find("d"), nullptr);
}

TEST_F(ShardedCheckpoint, RequireNamesFoundAndExpected) {
  const auto weights = Checkpoint::open(folder_.path());
  ASSERT_TRUE(weights.ok());
  EXPECT_TRUE(weights->require({"a", DType::kBf16, {4, 8}}).ok());
  EXPECT_THAT(weights->require({"a", DType::kBf16, {4, 9}}).status().message(),
              HasSubstr("tensor a is BF16 [4, 8], expected BF16 [4, 9]"));
  const std::vector<DType> dtypes = {DType::kF32, DType::kF16};
  EXPECT_THAT(weights->require("a", dtypes, std::vector<int64_t>{4, 8}).status().message(),
              HasSubstr("expected F32 [4, 8] or F16 [4, 8]"));
  const auto missing = weights->require({"d", DType::kF32, {}});
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("no tensor d"));
  EXPECT_THAT(missing.status().message(), HasSubstr("get them again"));
}

TEST_F(ShardedCheckpoint, HeadersOnlyMapsNothing) {
  const auto weights = Checkpoint::open(folder_.path(), {.headers_only = true});
  ASSERT_TRUE(weights.ok());
  EXPECT_EQ(weights->total_bytes(), 64 + 12 + 5);
  EXPECT_TRUE(weights->find("a")->bytes.empty());
  EXPECT_EQ(weights->residence(), WeightsResidence::kNone);
}

TEST_F(ShardedCheckpoint, ManifestHashDoesNotDependOnTheShards) {
  TempFolder single;
  const std::vector<TensorSpec> specs = {
      {"c", DType::kU8, {5}}, {"a", DType::kBf16, {4, 8}}, {"b", DType::kF32, {3}}};
  testing::write_test_tensors(single / "model.safetensors", specs);
  const auto sharded = Checkpoint::open(folder_.path(), {.headers_only = true});
  const auto whole = Checkpoint::open(single.path());
  const auto dummy = Checkpoint::dummy(specs);
  ASSERT_TRUE(sharded.ok() && whole.ok() && dummy.ok());
  EXPECT_EQ(sharded->manifest_hash(), whole->manifest_hash());
  EXPECT_EQ(dummy->manifest_hash(), whole->manifest_hash());

  auto other = specs;
  other[1].shape = {8, 4};
  EXPECT_NE(Checkpoint::dummy(other)->manifest_hash(), whole->manifest_hash());
  other = specs;
  other[0].name = "d";
  EXPECT_NE(Checkpoint::dummy(other)->manifest_hash(), whole->manifest_hash());
}

TEST_F(ShardedCheckpoint, TensorsThatTheIndexDoesNotListAreLeftOut) {
  write_index({{"a", kFirst}, {"c", kSecond}});
  const auto weights = Checkpoint::open(folder_.path());
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_THAT(weights->names(), ElementsAre("a", "c"));
  // The file that holds it is not accused, the index is.
  EXPECT_THAT(weights->require({"b", DType::kF32, {3}}).status().message(),
              HasSubstr(folder_ / kSecond + ": tensor b is there, but model.safetensors.index.json "
                                            "does not list it; get the index again"));
}

TEST_F(ShardedCheckpoint, HostileTensorMissing) {
  write_index({{"a", kFirst}, {"b", kSecond}, {"bb", kSecond}, {"c", kSecond}});
  EXPECT_THAT(fault(), HasSubstr("tensor bb is missing from"));
}

TEST_F(ShardedCheckpoint, HostileTensorInAnotherShard) {
  write_index({{"a", kFirst}, {"b", kFirst}, {"c", kSecond}});
  EXPECT_THAT(fault(), HasSubstr("tensor b is in"));
}

TEST_F(ShardedCheckpoint, HostileTensorInTwoShards) {
  testing::write_test_tensors(folder_ / kFirst,
                              {{"a", DType::kBf16, {4, 8}}, {"b", DType::kF32, {3}}});
  EXPECT_THAT(fault(), HasSubstr("tensor b is in "));
}

TEST_F(ShardedCheckpoint, HostileShardMissing) {
  fs::remove(folder_ / kSecond);
  EXPECT_THAT(fault(), HasSubstr("model.safetensors.index.json names a file that is missing: "));
  EXPECT_THAT(fault(), HasSubstr(folder_ / kSecond + ": "));
  EXPECT_THAT(fault(), HasSubstr("hf download"));
  EXPECT_THAT(fault(), HasSubstr("--load-format dummy"));
}

TEST_F(ShardedCheckpoint, HostileShardIsAFifo) {
  fs::remove(folder_ / kSecond);
  ASSERT_EQ(mkfifo((folder_ / kSecond).c_str(), 0600), 0);
  EXPECT_THAT(fault(), HasSubstr("is a FIFO"));
}

TEST_F(ShardedCheckpoint, HostileShardIsADevice) {
  replace_second("/dev/zero");
  EXPECT_THAT(fault(), HasSubstr("is a device"));
}

TEST_F(ShardedCheckpoint, HostileShardIsAFolder) {
  fs::remove(folder_ / kSecond);
  fs::create_directory(folder_ / kSecond);
  EXPECT_THAT(fault(), HasSubstr("is a folder"));
}

TEST_F(ShardedCheckpoint, HostileShardIsADanglingLink) {
  replace_second(folder_ / "none");
  EXPECT_THAT(fault(), HasSubstr("symbolic link to a file that does not exist"));
}

TEST_F(ShardedCheckpoint, HostileShardTruncated) {
  fs::resize_file(folder_ / kSecond, fs::file_size(folder_ / kSecond) - 1);
  EXPECT_THAT(fault(), HasSubstr(kSecond));
  EXPECT_THAT(fault(), HasSubstr("past the"));
}

TEST_F(ShardedCheckpoint, HostileShardTruncatedWhileMapped) {
  testing::write_test_tensors(folder_ / kFirst, {{"a", DType::kU8, {1 << 20}}});
  const auto weights = Checkpoint::open(folder_.path());
  ASSERT_TRUE(weights.ok());
  fs::resize_file(folder_ / kFirst, 4096);
  const Status status = weights->warm();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr(kFirst));
}

TEST_F(ShardedCheckpoint, WarmReportsProgressToTheEnd) {
  const auto weights = Checkpoint::open(folder_.path());
  ASSERT_TRUE(weights.ok());
  int64_t last = -1;
  int64_t total = 0;
  ASSERT_TRUE(weights
                  ->warm({.progress =
                              [&](int64_t done, int64_t of) {
                                EXPECT_GE(done, last);
                                last = done;
                                total = of;
                              }})
                  .ok());
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, static_cast<int64_t>(fs::file_size(folder_ / kFirst) +
                                        fs::file_size(folder_ / kSecond)));
}

TEST_F(ShardedCheckpoint, WarmStopsWhenAsked) {
  const auto weights = Checkpoint::open(folder_.path());
  ASSERT_TRUE(weights.ok());
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(weights->warm({.stop = stop.get_token()}).code(), StatusCode::kCancelled);
}

TEST_F(ShardedCheckpoint, LockedWeightsAreTheSameBytes) {
  for (const bool copy : {false, true}) {
    auto weights = Checkpoint::open(folder_.path());
    ASSERT_TRUE(weights.ok());
    const Status status = weights->lock_in_memory({.prefer_copy = copy});
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_NE(weights->residence(), WeightsResidence::kMapped);
    if (copy) {
      EXPECT_EQ(weights->residence(), WeightsResidence::kCopied);
    }
    const TensorInfo* a = weights->find("a");
    for (size_t i = 0; i < a->bytes.size(); ++i) {
      EXPECT_EQ(std::to_integer<size_t>(a->bytes[i]), i % 251);
    }
  }
}

TEST_F(ShardedCheckpoint, PrivateCopyHoldsWhatThisProcessReads) {
  auto weights = Checkpoint::open(folder_.path());
  ASSERT_TRUE(weights.ok());
  const int64_t others = weights->find("a")->byte_size;
  const OwnParts own = [](const TensorSpec& tensor,
                          int64_t) -> std::optional<std::vector<TensorPart>> {
    if (tensor.name == "a") return std::vector<TensorPart>{};
    return std::nullopt;
  };
  int64_t copied = 0;
  const auto note = [&](int64_t, int64_t total) { copied = total; };
  ASSERT_TRUE(weights
                  ->lock_in_memory(
                      {.progress = note, .part = 1, .parts = 2, .own = own, .prefer_copy = true})
                  .ok());
  EXPECT_EQ(copied, weights->total_bytes() - others);
  EXPECT_EQ(weights->find("c")->as<uint8_t>()[3], 3);
}

TEST_F(ShardedCheckpoint, PrivateCopyOutlivesTheFiles) {
  auto weights = Checkpoint::open(folder_.path());
  ASSERT_TRUE(weights.ok());
  ASSERT_TRUE(weights->lock_in_memory({.prefer_copy = true}).ok());
  fs::resize_file(folder_ / kSecond, 0);
  EXPECT_EQ(weights->find("c")->as<uint8_t>()[3], 3);
}

TEST(Checkpoint, AbsentWeightsAreNotFoundAndBrokenOnesAreThere) {
  TempFolder folder;
  EXPECT_FALSE(Checkpoint::present(folder.path()));
  EXPECT_EQ(status_of(Checkpoint::open(folder.path())).code(), StatusCode::kNotFound);
  fs::create_symlink(folder / "none", folder / "model.safetensors");
  EXPECT_TRUE(Checkpoint::present(folder.path()));
  EXPECT_FALSE(Checkpoint::open(folder.path()).ok());
}

TEST(Checkpoint, UnalignedTensorsAreCopied) {
  TempFolder folder;
  // A header of 61 bytes: the data begins at an odd offset.
  std::string header = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  header.resize(61, ' ');
  const std::vector<float> values = {1.5f, -2.0f};
  testing::write_raw_safetensors(
      folder / "model.safetensors", header,
      std::string(reinterpret_cast<const char*>(values.data()), sizeof(float) * values.size()));
  const auto weights = Checkpoint::open(folder.path());
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_EQ(weights->copied_bytes(), 8);
  EXPECT_THAT(weights->find("w")->as<float>(), ElementsAre(1.5f, -2.0f));
}

TEST(Checkpoint, OpensTheGoldens) {
  struct Golden {
    const char* name;
    size_t files;
    size_t tensors;
  };
  for (const Golden& g : {Golden{"gptoss-mxfp4-h160", 1, 79}, Golden{"gptoss-bf16-h160", 1, 37},
                          Golden{"gptoss-mxfp4-h288", 6, 41}, Golden{"mixtral-bf16-h72", 1, 78}}) {
    const auto weights = Checkpoint::open(golden(g.name));
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    EXPECT_EQ(weights->files().size(), g.files) << g.name;
    EXPECT_EQ(weights->tensors().size(), g.tensors) << g.name;
    EXPECT_EQ(weights->copied_bytes(), 0) << g.name;
    EXPECT_TRUE(weights->warm().ok());
  }
}

std::vector<TensorSpec> dummy_specs() {
  return {{"model.layers.0.mlp.experts.down_proj_scales", DType::kU8, {4, 160, 5}},
          {"model.layers.0.mlp.experts.down_proj_blocks", DType::kU8, {4, 160, 5, 16}},
          {"model.layers.0.self_attn.q_proj.weight", DType::kBf16, {1000, 900}},
          {"model.norm.weight", DType::kBf16, {900}},
          {"gate.weight", DType::kF32, {33, 17}},
          {"w8", DType::kF8E4M3, {333}},
          {"scalar", DType::kF32, {}}};
}

bool same_bytes(const TensorInfo& a, const TensorInfo& b) {
  return std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end());
}

TEST(DummyWeights, AreAFunctionOfSeedAndNameAlone) {
  const auto specs = dummy_specs();
  auto fewer = specs;
  fewer.erase(fewer.begin());
  const auto first = Checkpoint::dummy(specs, 7, {.threads = 1});
  const auto again = Checkpoint::dummy(fewer, 7, {.threads = 3});
  const auto other = Checkpoint::dummy(specs, 8);
  ASSERT_TRUE(first.ok() && again.ok() && other.ok());
  for (const TensorSpec& spec : fewer) {
    EXPECT_TRUE(same_bytes(*first->find(spec.name), *again->find(spec.name))) << spec.name;
    EXPECT_FALSE(same_bytes(*first->find(spec.name), *other->find(spec.name))) << spec.name;
  }
}

// Experts 1 and 2 of 4 are this process's; the rest of what is stacked stays as it is allocated.
TEST(DummyWeights, PartsOfOthersAreNotFilled) {
  const auto specs = dummy_specs();
  const OwnParts own = [](const TensorSpec& tensor,
                          int64_t bytes) -> std::optional<std::vector<TensorPart>> {
    if (tensor.name.find(".experts.") == std::string::npos) return std::nullopt;
    return std::vector<TensorPart>{{bytes / 4, bytes / 4 * 3}};
  };
  const auto whole = Checkpoint::dummy(specs, 7);
  const auto part = Checkpoint::dummy(specs, 7, {.own = own});
  ASSERT_TRUE(whole.ok() && part.ok());
  EXPECT_EQ(part->manifest_hash(), whole->manifest_hash());
  for (const TensorSpec& spec : specs) {
    const auto expected = whole->find(spec.name)->bytes, found = part->find(spec.name)->bytes;
    const bool stacked = own(spec, std::ssize(expected)).has_value();
    const size_t quarter = stacked ? expected.size() / 4 : 0;
    EXPECT_TRUE(std::ranges::equal(expected.subspan(quarter, expected.size() - 2 * quarter),
                                   found.subspan(quarter, found.size() - 2 * quarter)))
        << spec.name;
    if (!stacked) continue;
    EXPECT_FALSE(std::ranges::equal(expected.first(quarter), found.first(quarter))) << spec.name;
    EXPECT_FALSE(std::ranges::equal(expected.last(quarter), found.last(quarter))) << spec.name;
  }
}

TEST(DummyWeights, PiecesMakeTheWhole) {
  const TensorSpec spec{"w", DType::kBf16, {1000}};
  const DummyFill fill(spec, 3);
  std::vector<std::byte> whole(2000);
  std::vector<std::byte> pieces(2000);
  fill.write(0, whole);
  for (size_t at = 0; at < pieces.size(); at += 48) {
    fill.write(static_cast<int64_t>(at),
               std::span(pieces).subspan(at, std::min<size_t>(48, pieces.size() - at)));
  }
  EXPECT_EQ(whole, pieces);
}

TEST(DummyWeights, AreFiniteAndOfSaneSize) {
  const auto weights = Checkpoint::dummy(dummy_specs());
  ASSERT_TRUE(weights.ok());
  double sum = 0;
  double squares = 0;
  const auto q = weights->find("model.layers.0.self_attn.q_proj.weight")->as<Bf16>();
  for (const Bf16 value : q) {
    ASSERT_TRUE(std::isfinite(to_float(value)));
    sum += to_float(value);
    squares += std::pow(to_float(value), 2);
  }
  const auto count = static_cast<double>(q.size());
  EXPECT_NEAR(sum / count, 0, 1e-3);
  EXPECT_NEAR(std::sqrt(squares / count), 1 / std::sqrt(900.0), 1e-3);
  for (const Bf16 value : weights->find("model.norm.weight")->as<Bf16>()) {
    EXPECT_NEAR(to_float(value), 1, 0.5);
  }
  for (const uint8_t scale :
       weights->find("model.layers.0.mlp.experts.down_proj_scales")->as<uint8_t>()) {
    EXPECT_GE(scale, 119);
    EXPECT_LE(scale, 122);
  }
  for (const uint8_t code : weights->find("w8")->as<uint8_t>()) EXPECT_NE(code & 0x7f, 0x7f);
}

// A state that neither dies at once nor grows: decays and steps of trained models.
TEST(DummyWeights, Mamba2RemembersAndForgets) {
  const auto weights = Checkpoint::dummy({{{"mixer.A_log", DType::kBf16, {64}},
                                           {"mixer.dt_bias", DType::kBf16, {64}},
                                           {"mixer.D", DType::kBf16, {64}}}});
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  for (size_t head = 0; head < 64; ++head) {
    const auto value = [&](const char* name) {
      return double{to_float(weights->find(name)->as<Bf16>()[head])};
    };
    const double step = std::log1p(std::exp(value("mixer.dt_bias")));
    const double decay = std::exp(-step * std::exp(value("mixer.A_log")));
    EXPECT_GT(decay, 0.001);
    EXPECT_LT(decay, 0.999);
    EXPECT_NEAR(value("mixer.D"), 1, 1);
  }
}

TEST(DummyWeights, TooLargeForTheMachineIsAnError) {
  const std::vector<TensorSpec> specs = {{"w", DType::kU8, {int64_t{1} << 50}}};
  EXPECT_EQ(status_of(Checkpoint::dummy(specs)).code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status_of(Checkpoint::dummy(specs)).message(), HasSubstr("--hf-overrides"));
  const std::vector<TensorSpec> endless = {{"w", DType::kF32, {int64_t{1} << 62}}};
  EXPECT_EQ(status_of(Checkpoint::dummy(endless)).code(), StatusCode::kInvalidArgument);
}

TEST(Progress, LineSaysShareAndRate) {
  EXPECT_EQ(progress_line("loading weights", 5'800'000'000, 13'800'000'000, 2.9),
            "loading weights  42 %  5.8 of 13.8 GB  2.0 GB/s");
  EXPECT_EQ(progress_line("loading weights", 0, 0, 0),
            "loading weights 100 %  0.0 of 0.0 GB  0.0 GB/s");
}

}  // namespace
}  // namespace rota
