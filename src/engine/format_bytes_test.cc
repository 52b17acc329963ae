#include "engine/format_bytes.h"

#include <gtest/gtest.h>

namespace rota {
namespace {

TEST(FormatBytes, TheLargestUnitThatKeepsADigit) {
  EXPECT_EQ(format_bytes(0), "0 bytes");
  EXPECT_EQ(format_bytes(999), "999 bytes");
  EXPECT_EQ(format_bytes(1000), "1.00 kB");
  EXPECT_EQ(format_bytes(999'990), "999.99 kB");
  EXPECT_EQ(format_bytes(999'999), "1.00 MB");
  EXPECT_EQ(format_bytes(65'248'815'744), "65.25 GB");
  EXPECT_EQ(format_bytes(2'000'000'000'000), "2.00 TB");
  EXPECT_EQ(format_bytes(INT64_MAX), "9223372.04 TB");
  EXPECT_EQ(format_bytes(-5'000'000), "-5.00 MB");
}

}  // namespace
}  // namespace rota
