#include "checkpoint/linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "checkpoint/expected_tensors.h"
#include "checkpoint/testing/write_safetensors.h"

namespace rota {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The last byte of every tensor of codes or block scales, one after the other, in a copy that is
// open.
TEST(VerifyLinears, FindsANanInEveryQuantisedLayerThatIsNoExpert) {
  ThreadTeam team({.threads = 2, .pin = false});
  for (const char* pack : {"nemotron-nvfp4-h112", "nemotron-latent-mixed-h112", "nemotron-fp8-h144",
                           "mixtral-fp8-h80", "qwen3-fp8-h288"}) {
    const std::string from = fmt::format("{}/tests/goldens/models/{}", ROTA_SOURCE_DIR, pack);
    const testing::TempFolder folder;
    const std::string path = folder / "model.safetensors";
    std::filesystem::copy_file(from + "/model.safetensors", path);
    const auto config = read_model_config(from);
    ASSERT_TRUE(config.ok()) << config.status().message();
    const auto checkpoint = Checkpoint::open(folder.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    const std::vector<LinearSource> sources = dense_linears(*config);
    ASSERT_TRUE(verify_linears(*checkpoint, sources, team).ok());
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    int seen = 0;
    for (const TensorInfo& tensor : checkpoint->tensors()) {
      const bool dense = std::any_of(sources.begin(), sources.end(), [&](const auto& source) {
        return tensor.name.starts_with(source.module + ".");
      });
      if (!dense || tensor.dtype != DType::kF8E4M3) continue;
      const auto before = static_cast<char>(tensor.bytes.back());
      const auto put_last = [&](char byte) {
        file.seekp(tensor.file_offset + tensor.byte_size - 1).put(byte).flush();
      };
      put_last('\x7f');
      const Status status = verify_linears(*checkpoint, sources, team);
      EXPECT_EQ(status.code(), StatusCode::kDataLoss) << tensor.name;
      EXPECT_THAT(status.message(), AllOf(HasSubstr(path), HasSubstr(tensor.name + ": row ")));
      put_last(before);
      ++seen;
    }
    EXPECT_GT(seen, 0) << pack;
    EXPECT_TRUE(verify_linears(*checkpoint, sources, team).ok());
  }
}

}  // namespace
}  // namespace rota
