#include "supervisor/check_launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace rota {
namespace {

using ::testing::HasSubstr;

TEST(CheckLaunch, MpirunNeedsDescriptors) {
  EXPECT_TRUE(check_descriptors(64).ok());
  EXPECT_THAT(check_descriptors(32).message(), HasSubstr("may open 32 files, and mpirun needs 64"));
}

TEST(CheckLaunch, RanksNeedRoomForSharedMemory) {
  constexpr uint64_t kMegabyte = 1 << 20;
  EXPECT_TRUE(check_room("/run", 48 * kMegabyte, 3).ok());
  EXPECT_EQ(
      check_room("/run", 4 * kMegabyte, 3).message(),
      "/run: 4.0 MB are free, and the shared memory of 3 rank(s) here needs 48; make room, or "
      "set XDG_RUNTIME_DIR to a folder that has it");
}

TEST(CheckLaunch, TheSocketsAddressHasAnEnd) {
  const std::string longest(107 - std::string("/front").size(), 'a');
  EXPECT_TRUE(check_length(longest).ok());
  EXPECT_THAT(check_length(longest + "a").message(),
              HasSubstr("/front: longer than 107 bytes; set XDG_RUNTIME_DIR to a shorter path"));
}

}  // namespace
}  // namespace rota
