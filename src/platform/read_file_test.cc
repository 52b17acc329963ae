#include "platform/read_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace rota {
namespace {

using testing::HasSubstr;

class ReadFile : public testing::Test {
 protected:
  ReadFile() : folder_(testing::TempDir() + "read_file") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~ReadFile() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
};

TEST_F(ReadFile, IsTheBytesOfTheFile) {
  const std::string bytes("a\0b\n\xff", 5);
  std::ofstream(path("f"), std::ios::binary) << bytes;
  EXPECT_EQ(read_file(path("f"), 5).value(), bytes);
  std::ofstream(path("empty")).flush();
  EXPECT_EQ(read_file(path("empty"), 0).value(), "");
}

TEST_F(ReadFile, WhatIsNoRegularFileIsSaidAndNeverWaitedFor) {
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  for (const std::string& what : {folder_, path("fifo"), std::string("/dev/zero")}) {
    const Status status = read_file(what, 1 << 20).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(what + ": is "));
    EXPECT_THAT(status.message(), HasSubstr("expected a regular file"));
  }
}

TEST_F(ReadFile, MissingAndTooLongFilesAreNamed) {
  EXPECT_EQ(read_file(path("none"), 1).status().code(), StatusCode::kNotFound);
  std::ofstream(path("f")) << "12345";
  EXPECT_THAT(read_file(path("f"), 4).status().message(),
              HasSubstr(path("f") + ": is 5 bytes long, expected at most 4"));
}

}  // namespace
}  // namespace rota
