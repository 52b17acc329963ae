// Do all ranks mean the same thing? What each is about to do, as a record of fixed size, and who
// does not agree. Pure functions: the records travel with the communicator's own means.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"

namespace rota {

enum class CollectiveKind {
  kReduce,
  kReduceScatter,
  kAllGather,
  kExchange,
  kMakeWindow,
  kFinishEpoch,
  kBarrier,
  kCompare,
  kSplit
};
std::string_view to_string(CollectiveKind kind);  // the operation's name

// sent, received: begins of the pieces [ranks + 1]. Of an exchange they fit pairwise, rank by rank;
// everything else is the same on all ranks.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::array<int64_t, 2> shape = {};  // [rows, width] of a sum
  std::span<const int64_t> sent = {};
  std::span<const int64_t> received = {};
};

int64_t call_record_size(int ranks);
void write_call_record(const CollectiveCall& call, int64_t sequence, std::span<int64_t> record);
// records: all ranks', one after another. kInternal names the two ranks and what each said.
Status check_call_records(std::span<const int64_t> records, int ranks);

// What Communicator::compare() compares.
inline constexpr int kMaxCompared = 16;
struct ValuesRecord {
  std::array<char, 32> what = {};  // as much of it as fits
  int64_t count = 0;
  std::array<int64_t, kMaxCompared> values = {};
  bool operator==(const ValuesRecord&) const = default;
};
ValuesRecord make_values_record(std::string_view what, std::span<const int64_t> values);
Status check_values_records(std::span<const ValuesRecord> records);

}  // namespace rota
