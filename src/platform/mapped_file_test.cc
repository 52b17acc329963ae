#include "platform/mapped_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace rota {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// Reads one byte, whatever the optimiser thinks; `at` may lie past the end.
int touch(const MappedFile& file, size_t at) {
  return static_cast<int>(static_cast<const volatile std::byte*>(file.bytes().data())[at]);
}

class MappedFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "rota_mapped_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& content) {
    const std::string path = folder_ / name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  static Status open_status(const std::string& path, FollowSymlinks follow = FollowSymlinks::kYes) {
    return status_of(MappedFile::open(path, follow));
  }

  fs::path folder_;
};

TEST_F(MappedFileTest, BytesAreTheFiles) {
  const auto file = MappedFile::open(write("a", "weights"), FollowSymlinks::kYes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto bytes = file->bytes();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), "weights");
}

TEST_F(MappedFileTest, TailOfAFullPageMayBeTouched) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto file = MappedFile::open(write("a", std::string(page, 'x')), FollowSymlinks::kYes);
  ASSERT_TRUE(file.ok());
  for (size_t i = 0; i < MappedFile::kReadableTail; ++i) EXPECT_EQ(touch(*file, page + i), 0);
}

TEST_F(MappedFileTest, EmptyFileHasNoBytes) {
  const auto file = MappedFile::open(write("a", ""), FollowSymlinks::kYes);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->bytes().empty());
  EXPECT_TRUE(file->read_ahead(0, 10).ok());
}

TEST_F(MappedFileTest, MovedFileKeepsItsBytes) {
  auto file = MappedFile::open(write("a", "weights"), FollowSymlinks::kYes);
  ASSERT_TRUE(file.ok());
  MappedFile moved = std::move(*file);
  MappedFile assigned;
  assigned = std::move(moved);
  EXPECT_EQ(assigned.bytes().size(), 7u);
  EXPECT_EQ(static_cast<char>(assigned.bytes()[0]), 'w');
}

TEST_F(MappedFileTest, ReadAheadAndAdviceCoverAnyRange) {
  const auto file = MappedFile::open(write("a", std::string(100'000, 'x')), FollowSymlinks::kYes);
  ASSERT_TRUE(file.ok());
  file->advise(Access::kSequential);
  file->advise(Access::kWillNeed, 99'999, 50);
  EXPECT_TRUE(file->read_ahead(0, SIZE_MAX).ok());
  EXPECT_TRUE(file->read_ahead(50'001, 3).ok());
  EXPECT_TRUE(file->read_ahead(200'000, 3).ok());
}

TEST_F(MappedFileTest, LockInMemoryLocksOrNamesTheLimit) {
  auto file = MappedFile::open(write("a", std::string(16 << 20, 'x')), FollowSymlinks::kYes);
  ASSERT_TRUE(file.ok());
  const Status status = file->lock_in_memory();
  EXPECT_EQ(file->locked(), status.ok());
  if (!status.ok()) {
    EXPECT_THAT(status.message(), HasSubstr("RLIMIT_MEMLOCK"));
  }
}

TEST_F(MappedFileTest, MissingFile) {
  const Status status = open_status(folder_ / "none");
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("none"));
}

TEST_F(MappedFileTest, Folder) {
  EXPECT_THAT(open_status(folder_).message(), HasSubstr("is a folder, expected a regular file"));
}

TEST_F(MappedFileTest, FifoIsRefusedWithoutWaitingForAWriter) {
  const std::string path = folder_ / "fifo";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(open_status(path).message(), HasSubstr("is a FIFO"));
}

TEST_F(MappedFileTest, Device) {
  EXPECT_THAT(open_status("/dev/zero").message(), HasSubstr("is a device"));
}

TEST_F(MappedFileTest, DanglingLink) {
  const fs::path link = folder_ / "link";
  fs::create_symlink(folder_ / "none", link);
  const Status status = open_status(link);
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("symbolic link to a file that does not exist"));
}

TEST_F(MappedFileTest, LinkLoop) {
  fs::create_symlink(folder_ / "b", folder_ / "a");
  fs::create_symlink(folder_ / "a", folder_ / "b");
  EXPECT_EQ(open_status(folder_ / "a").code(), StatusCode::kInvalidArgument);
}

TEST_F(MappedFileTest, LinkIsRefusedWhereTheCallerSaysSo) {
  const fs::path link = folder_ / "link";
  fs::create_symlink(write("a", "weights"), link);
  EXPECT_TRUE(open_status(link, FollowSymlinks::kYes).ok());
  EXPECT_THAT(open_status(link, FollowSymlinks::kNo).message(), HasSubstr("is a symbolic link"));
}

TEST_F(MappedFileTest, NulInAName) {
  EXPECT_EQ(open_status(std::string("a\0b", 3)).code(), StatusCode::kInvalidArgument);
}

TEST_F(MappedFileTest, TruncatedWhileMappedIsAnErrorOfReadAhead) {
  const std::string path = write("shard.safetensors", std::string(1 << 20, 'x'));
  const auto file = MappedFile::open(path, FollowSymlinks::kYes);
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(truncate(path.c_str(), 4096), 0);
  const Status status = file->read_ahead(0, SIZE_MAX);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("shard.safetensors"));
}

TEST_F(MappedFileTest, ShrunkBySoLittleThatNoPageIsLost) {
  const std::string path = write("shard.safetensors", std::string(10'000, 'x'));
  const auto file = MappedFile::open(path, FollowSymlinks::kYes);
  EXPECT_FALSE(file->has_shrunk());
  ASSERT_EQ(truncate(path.c_str(), 9'999), 0);
  EXPECT_TRUE(file->has_shrunk());
}

TEST_F(MappedFileTest, AnotherFileUnderItsNameIsNoShrinking) {
  const std::string path = write("shard.safetensors", std::string(10'000, 'x'));
  const auto file = MappedFile::open(path, FollowSymlinks::kYes);
  fs::rename(write("new", "short"), path);
  EXPECT_FALSE(file->has_shrunk());
  fs::remove(path);
  EXPECT_FALSE(file->has_shrunk());
}

using MappedFileDeathTest = MappedFileTest;

TEST_F(MappedFileDeathTest, TruncatedWhileMappedEndsTheProcessNamingTheFile) {
  const std::string path = write("shard.safetensors", std::string(1 << 20, 'x'));
  const std::string other = write("other.safetensors", std::string(1 << 20, 'x'));
  EXPECT_EXIT(
      {
        const auto first = MappedFile::open(other, FollowSymlinks::kYes);
        const auto file = MappedFile::open(path, FollowSymlinks::kYes);
        const auto last = MappedFile::open(other, FollowSymlinks::kYes);
        const bool ready = install_mapped_file_guard().ok() && install_mapped_file_guard().ok() &&
                           truncate(path.c_str(), 4096) == 0;
        if (ready) _exit(touch(*file, 500'000));
      },
      testing::ExitedWithCode(kMappedFileLostExitCode), "shard.safetensors: became shorter");
}

TEST_F(MappedFileDeathTest, SigbusElsewhereKeepsItsMeaning) {
  EXPECT_EXIT(
      {
        const auto file = MappedFile::open(write("a", "weights"), FollowSymlinks::kYes);
        std::signal(SIGBUS, SIG_DFL);  // a sanitizer has a handler of its own
        if (install_mapped_file_guard().ok()) raise(SIGBUS);
        _exit(0);
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST_F(MappedFileDeathTest, UnmappedFileIsForgotten) {
  const std::string path = write("gone.safetensors", std::string(1 << 20, 'x'));
  const std::string kept = write("kept.safetensors", std::string(1 << 20, 'x'));
  EXPECT_EXIT(
      {
        {
          const auto gone = MappedFile::open(path, FollowSymlinks::kYes);
        }
        const auto file = MappedFile::open(kept, FollowSymlinks::kYes);
        if (install_mapped_file_guard().ok() && truncate(kept.c_str(), 4096) == 0) {
          _exit(touch(*file, 500'000));
        }
      },
      testing::ExitedWithCode(kMappedFileLostExitCode), "kept.safetensors: became shorter");
}

}  // namespace
}  // namespace rota
