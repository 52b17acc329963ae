#include "moe/prepare_finalize/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace rota {
namespace {

using ::testing::ElementsAre;

const KernelTable& ref() { return *available_kernels(detect_cpu()).front(); }

TEST(WireRow, CarriesWhatExpertsRoundTo) {
  const std::vector<float> row = {1.0f, 1.00390625f,
                                  -3.14159f};  // the second lies between two BF16
  std::vector<float> back(3);
  for (const Compute compute : {Compute::kBf16, Compute::kFloat32, Compute::kInt8}) {
    const WireRow wire(Extent(3), compute);
    std::vector<std::byte> bytes(static_cast<size_t>(wire.bytes()));
    EXPECT_EQ(wire.bytes(), compute == Compute::kBf16 ? 6 : 12);
    wire.pack(row, bytes.data());
    wire.unpack(ref(), bytes.data(), back);
    for (size_t i = 0; i < row.size(); ++i) {
      EXPECT_EQ(back[i], compute == Compute::kBf16 ? to_float(to_bf16(row[i])) : row[i]);
    }
  }
}

TEST(WireRow, PaddingIsZeroOnTheWire) {
  const std::vector<float> row = {NAN, -1, 2};
  for (const Compute compute : {Compute::kBf16, Compute::kFloat32}) {
    const WireRow wire(Extent(3, 256), compute);
    std::vector<std::byte> bytes(static_cast<size_t>(wire.bytes()) + 1, std::byte{0xff});
    wire.pack(row, bytes.data());
    const size_t used = static_cast<size_t>(WireRow(Extent(3), compute).bytes());
    for (size_t i = used; i + 1 < bytes.size(); ++i) ASSERT_EQ(bytes[i], std::byte{0}) << i;
    EXPECT_EQ(bytes.back(), std::byte{0xff});
  }
}

TEST(WireToken, BringsIdsAndWeightsAlong) {
  const std::vector<float> row = {1, 2, 3};
  const std::vector<int32_t> ids = {7, 300};
  const std::vector<float> weights = {0.75f, 0.25f};
  for (const bool with_weights : {false, true}) {
    const WireToken wire(WireRow(Extent(3), Compute::kBf16), 2, with_weights);
    EXPECT_EQ(wire.bytes(), 6 + 8 + (with_weights ? 8 : 0));
    std::vector<std::byte> bytes(static_cast<size_t>(wire.bytes()));
    wire.pack({row, ids, weights}, bytes.data());
    wire.set_id(bytes.data(), 0, -1);
    std::vector<float> got_row(3), got_weights(2, 9.0f);
    std::vector<int32_t> got_ids(2);
    wire.unpack(ref(), bytes.data(), {got_row, got_ids, got_weights});
    EXPECT_EQ(got_row, row);
    EXPECT_THAT(got_ids, ElementsAre(-1, 300));
    EXPECT_EQ(got_weights, with_weights ? weights : std::vector<float>(2, 9.0f));
  }
}

}  // namespace
}  // namespace rota
