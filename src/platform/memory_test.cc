#include "platform/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "platform/count_buffers.h"

namespace rota {
namespace {

bool all_bytes_are(const Buffer& buffer, int value) {
  return std::all_of(buffer.data(), buffer.data() + buffer.size(),
                     [value](std::byte b) { return std::to_integer<int>(b) == value; });
}

class BufferSizes : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Sizes, BufferSizes,
                         ::testing::Values(0, 1, 63, 64, 65, 4096, (size_t{2} << 20) - 1,
                                           size_t{2} << 20, (size_t{5} << 20) + 3));

TEST_P(BufferSizes, IsAlignedZeroAndWritable) {
  Result<Buffer> buffer = Buffer::allocate(GetParam(), Fill::kZero);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(buffer->size(), GetParam());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % kCacheLine, 0u);
  EXPECT_TRUE(all_bytes_are(*buffer, 0));
  std::memset(buffer->data(), 7, buffer->size());
  EXPECT_TRUE(all_bytes_are(*buffer, 7));
}

TEST(Buffer, IsCountedWithoutMemory) {
  constexpr size_t kMoreThanThereIs = size_t{1} << 60;
  {
    const BuffersWithoutMemory counting;
    Result<Buffer> counted = Buffer::allocate(kMoreThanThereIs, Fill::kZero);
    ASSERT_TRUE(counted.ok());
    const Buffer moved = std::move(*counted);
    EXPECT_EQ(moved.size(), kMoreThanThereIs);
    EXPECT_EQ(moved.data(), nullptr);
  }
  EXPECT_FALSE(Buffer::allocate(kMoreThanThereIs, Fill::kZero).ok());
}

TEST(Buffer, MovesAndReleases) {
  Buffer first = *Buffer::allocate(100, Fill::kZero);
  std::byte* data = first.data();
  Buffer second = std::move(first);
  EXPECT_EQ(second.data(), data);
  // NOLINTNEXTLINE(bugprone-use-after-move,clang-analyzer-cplusplus.Move): a moved-from buffer is empty, by contract
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(first.size(), 0u);
  second = *Buffer::allocate(200, Fill::kZero);
  EXPECT_EQ(second.size(), 200u);
}

TEST(Buffer, TooMuchIsAnErrorNotACrash) {
  for (const size_t bytes : {~size_t{0}, ~size_t{0} / 2, size_t{1} << 60}) {
    const Result<Buffer> buffer = Buffer::allocate(bytes, Fill::kUnspecified);
    ASSERT_FALSE(buffer.ok());
    EXPECT_EQ(buffer.status().code(), StatusCode::kResourceExhausted);
  }
}

#ifdef ROTA_POISON
TEST_P(BufferSizes, FreshMemoryIsPoison) {
  const Result<Buffer> buffer = Buffer::allocate(GetParam(), Fill::kUnspecified);
  ASSERT_TRUE(buffer.ok());
  EXPECT_TRUE(all_bytes_are(*buffer, 0xFF));
}

void write_at(int64_t offset, size_t size = 100) {
  Buffer buffer = *Buffer::allocate(size, Fill::kZero);
  volatile std::byte* data = buffer.data();
  data[offset] = std::byte{1};
}

TEST(BufferDeathTest, AWritePastTheEndIsFound) {
  EXPECT_DEATH(write_at(100), "past a buffer");
  EXPECT_DEATH(write_at(150), "past a buffer");
}

TEST(BufferDeathTest, AWriteBeforeTheStartIsFound) {
  EXPECT_DEATH(write_at(-1), "before a buffer");
}

// Any byte of either guard, for buffers of any size, small and mapped.
TEST(BufferDeathTest, NoGuardByteIsForgotten) {
  std::mt19937 random(3);
  for (int round = 0; round < 12; ++round) {
    const size_t size = round % 4 == 3 ? (size_t{2} << 20) + random() % 200 : random() % 200;
    const auto in_guard = static_cast<int64_t>(random() % kCacheLine);
    EXPECT_DEATH(write_at(static_cast<int64_t>(size) + in_guard, size), "past a buffer") << size;
    EXPECT_DEATH(write_at(-1 - in_guard, size), "before a buffer") << size;
  }
}
#endif

TEST(Memory, InfoIsPlausible) {
  const MemoryInfo info = memory_info();
  EXPECT_GT(info.total_bytes, int64_t{64} << 20);
  EXPECT_GT(info.available_bytes, 0);
  EXPECT_LE(info.available_bytes, info.total_bytes);
}

TEST(Memory, ResidentFollowsUse) {
  const int64_t before = resident_bytes();
  EXPECT_GT(before, 0);
  constexpr size_t kBytes = size_t{64} << 20;
  Buffer buffer = *Buffer::allocate(kBytes, Fill::kUnspecified);
  std::memset(buffer.data(), 1, kBytes);
  EXPECT_GE(resident_bytes(), before + static_cast<int64_t>(kBytes) / 2);
  EXPECT_GE(peak_resident_bytes(), static_cast<int64_t>(kBytes));
  EXPECT_GE(major_page_faults(), 0);
}

// Between what the slowest memory and the fastest cache could give: a loop that the compiler
// dropped or a zero page that stays in the cache would be far outside.
TEST(Memory, ReadBandwidthIsARate) {
  const double rate = measure_read_bandwidth(1, 0.05);
  EXPECT_GT(rate, 1e8);
  EXPECT_LT(rate, 5e11);
}

}  // namespace
}  // namespace rota
