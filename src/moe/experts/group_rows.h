// Rows sorted by expert: which token each row is of, which rows belong to which expert, and where
// each slot's row went. Rows of one expert keep the order of their tokens.
//
//   GroupedRows rows = group_rows(topk, map, storage);    // storage: of group_rows_storage()
#pragma once

#include <cstdint>
#include <span>

#include "moe/expert_map.h"
#include "moe/experts.h"
#include "moe/routing.h"

namespace rota {

struct GroupedRows {
  std::span<int32_t> token_of_row;  // [rows]; batched: the place
  // [T * k], or [local experts * places]; ExpertsOutput::kNotHere where there is no row.
  std::span<int32_t> row_of_slot;
  std::span<int32_t> active;     // local experts that have rows, most rows first
  std::span<int32_t> first_row;  // [local experts + 1]

  int64_t rows() const { return static_cast<int64_t>(token_of_row.size()); }
  int64_t first(int32_t local) const { return first_row[static_cast<size_t>(local)]; }
  int64_t count(int32_t local) const {
    return first_row[static_cast<size_t>(local) + 1] - first(local);
  }
};

// Number of int32_t that group_rows() needs.
int64_t group_rows_storage(int64_t slots, int64_t local_experts);

// Does not allocate.
GroupedRows group_rows(const TopK& topk, const ExpertMap& map, std::span<int32_t> storage);
// The same of tokens that lie expert by expert already; slots are places.
GroupedRows group_rows(const BatchedTokens& batched, std::span<int32_t> storage);

}  // namespace rota
