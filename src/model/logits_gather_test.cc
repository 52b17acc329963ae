#include "model/logits_gather.h"

#include <gtest/gtest.h>

#include "comm/loopback.h"
#include "kernels/kernels.h"
#include "platform/cpu.h"

namespace rota {
namespace {

// A vocabulary that does not divide, more rows than travel at once, rows that lie apart.
TEST(LogitsGather, AllRanksGetAllColumns) {
  constexpr int64_t kVocab = 31;
  constexpr int64_t kStride = 40;
  const std::vector<int64_t> begin{0, 10, 11, kVocab};
  LoopbackRanks ranks(3, {.timeout_seconds = 20, .check_collectives = true});
  ranks.run([&](Communicator& rank) {
    ThreadTeam team({.threads = 2, .pin = false});
    const auto exec = Execution::make(kernels_for(Isa::kRef, detect_cpu()), Compute::kFloat32, team,
                                      {.max_in = Extent(1), .attention = {}});
    auto gather = LogitsGather::make(begin, rank.rank());
    ASSERT_TRUE(exec.ok() && gather.ok());
    EXPECT_EQ(gather->bytes(), 16 * kVocab * 4);
    for (const int64_t rows : {37, 0, 1, 16}) {
      std::vector<float> data(static_cast<size_t>(rows * kStride), -1.0f);
      const MatrixView<float> logits(data.data(), rows, Extent(kVocab), kStride);
      const MatrixView<float> own = gather->own_columns(logits);
      const int64_t first = begin[static_cast<size_t>(rank.rank())];
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < own.width().logical(); ++i) {
          own.row(row)[static_cast<size_t>(i)] = static_cast<float>(100 * row + first + i);
        }
      }
      const Status status = gather->run(*exec, logits, rank);
      ASSERT_TRUE(status.ok()) << status.message();
      for (int64_t i = 0; i < std::ssize(data); ++i) {
        const int64_t row = i / kStride, column = i % kStride;
        const auto want = column < kVocab ? static_cast<float>(100 * row + column) : -1.0f;
        ASSERT_EQ(data[static_cast<size_t>(i)], want) << "row " << row << ", column " << column;
      }
    }
  });
}

}  // namespace
}  // namespace rota
