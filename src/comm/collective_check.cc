#include "comm/collective_check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>

#include "base/check.h"

namespace rota {
namespace {

// A record: sequence, kind, shape (2), then lengths sent to [ranks] and received from [ranks].
constexpr size_t kSequence = 0, kKind = 1, kShape = 2, kPieces = 4;

struct Record {
  std::span<const int64_t> numbers;

  CollectiveKind kind() const { return static_cast<CollectiveKind>(numbers[kKind]); }
  size_t ranks() const { return (numbers.size() - kPieces) / 2; }
  std::span<const int64_t> sent() const { return numbers.subspan(kPieces, ranks()); }
  std::span<const int64_t> received() const { return numbers.subspan(kPieces + ranks()); }
};

std::string describe(const Record& record) {
  std::string name =
      fmt::format("operation {}, {}", record.numbers[kSequence], to_string(record.kind()));
  const int64_t rows = record.numbers[kShape], width = record.numbers[kShape + 1];
  const std::string pieces = fmt::format("{}", fmt::join(record.received(), ", "));
  switch (record.kind()) {
    case CollectiveKind::kReduce:
      return fmt::format("{} of [{}, {}]", name, rows, width);
    case CollectiveKind::kReduceScatter:
      return fmt::format("{} of width {}, rows of each rank {}", name, width, pieces);
    case CollectiveKind::kAllGather:
      return fmt::format("{}, bytes of each rank {}", name, pieces);
    default:
      return name;
  }
}

// What must be the same on every rank.
bool agree(const Record& a, const Record& b) {
  const size_t common = a.kind() == CollectiveKind::kExchange ? kPieces : a.numbers.size();
  return std::ranges::equal(a.numbers.first(common), b.numbers.first(common));
}

Status check_pieces(std::span<const int64_t> records, size_t ranks, size_t size) {
  for (size_t from = 0; from < ranks; ++from) {
    for (size_t to = 0; to < ranks; ++to) {
      const int64_t sent = Record{records.subspan(from * size, size)}.sent()[to];
      const int64_t expected = Record{records.subspan(to * size, size)}.received()[from];
      if (sent == expected) continue;
      return error(StatusCode::kInternal,
                   "operation {}, exchange: rank {} sends {} bytes to rank {}, which expects {}",
                   records[kSequence], from, sent, to, expected);
    }
  }
  return {};
}

void write_lengths(std::span<const int64_t> begin, std::span<int64_t> lengths) {
  for (size_t r = 0; r < lengths.size(); ++r) {
    lengths[r] = begin.empty() ? 0 : begin[r + 1] - begin[r];
  }
}

std::string describe(const ValuesRecord& record) {
  const std::span values = std::span(record.values).first(static_cast<size_t>(record.count));
  return fmt::format("{} [{}]", record.what.data(), fmt::join(values, ", "));
}

}  // namespace

std::string_view to_string(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kReduce:
      return "reduce";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kExchange:
      return "exchange";
    case CollectiveKind::kMakeWindow:
      return "make_window";
    case CollectiveKind::kFinishEpoch:
      return "finish_epoch";
    case CollectiveKind::kBarrier:
      return "barrier";
    case CollectiveKind::kCompare:
      return "compare";
    case CollectiveKind::kSplit:
      return "split";
  }
  return "unknown operation";
}

int64_t call_record_size(int ranks) { return static_cast<int64_t>(kPieces) + 2 * ranks; }

void write_call_record(const CollectiveCall& call, int64_t sequence, std::span<int64_t> record) {
  const size_t ranks = Record{record}.ranks();
  record[kSequence] = sequence;
  record[kKind] = static_cast<int64_t>(call.kind);
  std::ranges::copy(call.shape, record.begin() + kShape);
  write_lengths(call.sent, record.subspan(kPieces, ranks));
  write_lengths(call.received, record.subspan(kPieces + ranks));
}

Status check_call_records(std::span<const int64_t> records, int ranks) {
  const auto size = static_cast<size_t>(call_record_size(ranks));
  const Record first{records.first(size)};
  for (size_t r = 1; r < static_cast<size_t>(ranks); ++r) {
    const Record other{records.subspan(r * size, size)};
    if (agree(first, other)) continue;
    return error(StatusCode::kInternal,
                 "the ranks do not do the same: rank 0 is at {}; rank {} is at {}", describe(first),
                 r, describe(other));
  }
  if (first.kind() != CollectiveKind::kExchange) return {};
  return check_pieces(records, static_cast<size_t>(ranks), size);
}

ValuesRecord make_values_record(std::string_view what, std::span<const int64_t> values) {
  ROTA_CHECK(values.size() <= kMaxCompared, "compare() takes at most kMaxCompared values");
  ValuesRecord record;
  std::ranges::copy(what.substr(0, record.what.size() - 1), record.what.begin());
  record.count = static_cast<int64_t>(values.size());
  std::ranges::copy(values, record.values.begin());
  return record;
}

Status check_values_records(std::span<const ValuesRecord> records) {
  for (size_t r = 1; r < records.size(); ++r) {
    if (records[r] == records[0]) continue;
    return error(StatusCode::kInternal, "the ranks do not agree: rank 0 says {}; rank {} says {}",
                 describe(records[0]), r, describe(records[r]));
  }
  return {};
}

}  // namespace rota
