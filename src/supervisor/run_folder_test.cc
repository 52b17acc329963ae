#include "supervisor/run_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <thread>

#include "engine/engine_rank.h"
#include "platform/clock.h"

namespace rota {
namespace {

namespace fs = std::filesystem;

class RunFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "rota-run-folder-test-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    parent_ = path;
  }
  void TearDown() override { fs::remove_all(parent_); }
  bool empty() const { return fs::is_empty(parent_); }

  fs::path parent_;
};

TEST_F(RunFolderTest, IsPrivateAndGoesWithAllThatIsInIt) {
  {
    const RunFolder folder = RunFolder::make_under(parent_).value();
    struct stat found{};
    ASSERT_EQ(::stat(folder.path().c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 07777, 0700U);
    fs::create_directories(folder.path() / "ompi.host.0" / "pid");
    std::ofstream(folder.path() / "vader_segment") << "memory";
  }
  EXPECT_TRUE(empty());
}

TEST_F(RunFolderTest, TwoThatLiveDoNotTouchEachOther) {
  const RunFolder one = RunFolder::make_under(parent_).value();
  const RunFolder two = RunFolder::make_under(parent_).value();
  EXPECT_TRUE(fs::exists(one.path()));
  EXPECT_NE(one.path(), two.path());
}

TEST_F(RunFolderTest, WhatAKilledFrontLeftIsDeletedByTheNext) {
  const pid_t front = ::fork();
  if (front == 0) {
    const auto folder = RunFolder::make_under(parent_);
    ::_exit(folder.ok() ? 0 : 1);  // as killed: nothing is unwound
  }
  int status = 1;
  ASSERT_EQ(::waitpid(front, &status, 0), front);
  ASSERT_EQ(status, 0);
  ASSERT_FALSE(empty());
  {
    const RunFolder next = RunFolder::make_under(parent_).value();
  }
  EXPECT_TRUE(empty());
}

TEST_F(RunFolderTest, IsDeletedWhenTheLastRankHasEnded) {
  std::optional<RunFolder> folder(RunFolder::make_under(parent_).value());
  const int rank = ::open((folder->path() / kRanksAliveFile).c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(rank, LOCK_SH), 0);
  std::thread ending([rank] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ::close(rank);
  });
  const auto start = Clock::now();
  folder.reset();
  EXPECT_GE(seconds_since(start), 0.15);
  EXPECT_TRUE(empty());
  ending.join();
}

// Its file was never made, as on a full disk: nobody is waited for.
TEST_F(RunFolderTest, IsDeletedAtOnceWhereNoRankCouldStart) {
  std::optional<RunFolder> folder(RunFolder::make_under(parent_).value());
  fs::remove(folder->path() / kRanksAliveFile);
  const auto start = Clock::now();
  folder.reset();
  EXPECT_LT(seconds_since(start), 4);  // a rank would have 5
  EXPECT_TRUE(empty());
}

TEST_F(RunFolderTest, AFolderThatCannotBeMadeIsAnErrorThatNamesIt) {
  const auto folder = RunFolder::make_under(parent_ / "nothing");
  ASSERT_FALSE(folder.ok());
  EXPECT_NE(folder.status().message().find("nothing"), std::string::npos);
  EXPECT_NE(folder.status().message().find("set XDG_RUNTIME_DIR"), std::string::npos);
}

}  // namespace
}  // namespace rota
