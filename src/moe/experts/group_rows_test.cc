#include "moe/experts/group_rows.h"

#include <gtest/gtest.h>

#include <vector>

#include "moe/experts.h"

namespace rota {
namespace {

struct Grouped {
  std::vector<int32_t> storage;
  GroupedRows rows;
};

Grouped group(const std::vector<int32_t>& ids, int64_t k, const ExpertMap& map) {
  Grouped out;
  const auto slots = static_cast<int64_t>(ids.size());
  out.storage.assign(static_cast<size_t>(group_rows_storage(slots, map.local_count())), 77);
  const TopK topk{.ids = ids.data(), .weights = nullptr, .tokens = slots / k, .k = k};
  out.rows = group_rows(topk, map, out.storage);
  return out;
}

std::vector<int32_t> list(std::span<const int32_t> values) {
  return {values.begin(), values.end()};
}

TEST(GroupRows, RowsAreSortedByExpertAndKeepTheOrderOfTokens) {
  const Grouped out = group({2, 0, 2, 1, 0, 2}, 2, ExpertMap::whole(4));
  EXPECT_EQ(list(out.rows.token_of_row), (std::vector<int32_t>{0, 2, 1, 0, 1, 2}));
  EXPECT_EQ(list(out.rows.row_of_slot), (std::vector<int32_t>{3, 0, 4, 2, 1, 5}));
  EXPECT_EQ(list(out.rows.first_row), (std::vector<int32_t>{0, 2, 3, 6, 6}));
  EXPECT_EQ(list(out.rows.active), (std::vector<int32_t>{2, 0, 1}));  // most rows first
}

TEST(GroupRows, EqualCountsGoByNumber) {
  EXPECT_EQ(list(group({3, 1, 0, 2}, 4, ExpertMap::whole(4)).rows.active),
            (std::vector<int32_t>{0, 1, 2, 3}));
}

// R8: an expert that is not here is nothing, never index -1.
TEST(GroupRows, ExpertsElsewhereHaveNoRow) {
  const ExpertMap map = *ExpertMap::make(4, 2, 1, ExpertPlacement::kLinear);  // experts 2, 3
  const Grouped out = group({2, 0, 3, 1}, 2, map);
  EXPECT_EQ(out.rows.rows(), 2);
  EXPECT_EQ(list(out.rows.row_of_slot),
            (std::vector<int32_t>{0, ExpertsOutput::kNotHere, 1, ExpertsOutput::kNotHere}));
}

TEST(GroupRows, NoRowsAtAll) {
  const ExpertMap map = *ExpertMap::make(4, 8, 7, ExpertPlacement::kLinear);  // none
  const Grouped out = group({2, 0}, 2, map);
  EXPECT_EQ(out.rows.rows(), 0);
  EXPECT_TRUE(out.rows.active.empty());
  EXPECT_EQ(group({}, 2, ExpertMap::whole(4)).rows.rows(), 0);
}

}  // namespace
}  // namespace rota
