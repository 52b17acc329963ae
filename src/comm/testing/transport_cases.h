// What every transport must do, written once: each case is a body that all ranks of a group run at
// the same time. comm_test runs them over threads, tests/mpi over processes.
//
//   for (const TransportCase& c : transport_cases()) {
//     LoopbackRanks ranks(4, c.options);
//     ranks.run(c.body);
//   }
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"

namespace rota::testing {

struct TransportCase {
  const char* name;
  void (*body)(Communicator& ranks);  // with googletest's EXPECT and ASSERT
  CommOptions options = {.timeout_seconds = 20};
  bool spends = false;  // the communicator is of no more use afterwards
};

inline void PrintTo(const TransportCase& c, std::ostream* out) { *out << c.name; }

namespace transport {

inline int64_t clock_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
inline void sleep_ms(int64_t milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

// Makes ranks come in any order: what they find must not depend on it.
struct Arrival {
  explicit Arrival(int rank) : generator(std::random_device{}() + static_cast<unsigned>(rank)) {}
  void at_any_time() {
    if (const auto us = generator() % 1500; us > 500) {
      std::this_thread::sleep_for(std::chrono::microseconds(us - 500));
    }
  }
  std::mt19937 generator;
};

// What rank `rank` adds to element `index`: of magnitudes so different that the order of a sum
// shows.
inline float share_of(int rank, int64_t index) {
  const auto mixed = static_cast<uint64_t>(rank + 1) * 0x9e3779b97f4a7c15u ^
                     static_cast<uint64_t>(index + 1) * 0xbf58476d1ce4e5b9u;
  const auto bits = static_cast<uint32_t>(mixed >> 29);
  const float value = std::ldexp(static_cast<float>(bits & 0xffffu) - 32768.0f,
                                 static_cast<int>(bits >> 16 & 31u) - 16);
  return value;
}
inline float sum_of(int ranks, int64_t index) {
  float sum = share_of(0, index);
  for (int rank = 1; rank < ranks; ++rank) sum += share_of(rank, index);
  return sum;
}

// [rows, width], each row followed by NaN that nobody may touch.
struct Rows {
  static constexpr int64_t kTail = 3;
  Rows(int64_t row_count, int64_t columns)
      : rows(row_count),
        width(columns),
        data(static_cast<size_t>(rows * (width + kTail)), std::numeric_limits<float>::quiet_NaN()) {
  }
  Rows(int rank, int64_t row_count, int64_t columns) : Rows(row_count, columns) {
    for (int64_t i = 0; i < rows * width; ++i) at(i) = share_of(rank, i);
  }
  float& at(int64_t i) {
    return data[static_cast<size_t>(i / width * (width + kTail) + i % width)];
  }
  MatrixView<float> view() {
    return {data.data(), rows, Extent(width, width + kTail), width + kTail};
  }
  // Bit for bit the sums of elements [first, ...) in rank order, and the tails as they were.
  void expect_sums(int ranks, int64_t first) {
    for (int64_t i = 0; i < rows * width; ++i) {
      const float expected = sum_of(ranks, first + i);
      ASSERT_EQ(std::memcmp(&at(i), &expected, sizeof(float)), 0)
          << "element " << i << ": " << at(i) << " instead of " << expected;
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t t = 0; t < kTail; ++t) {
        ASSERT_TRUE(std::isnan(data[static_cast<size_t>(r * (width + kTail) + width + t)]));
      }
    }
  }

  int64_t rows, width;
  std::vector<float> data;
};

// Pieces in one buffer, their lengths given; the bytes say where they come from and go to.
struct Pieces {
  explicit Pieces(const std::vector<int64_t>& lengths) : begin(1) {
    for (const int64_t length : lengths) begin.push_back(begin.back() + length);
    data.resize(static_cast<size_t>(begin.back()) + 1, std::byte{0xee});  // one more, never touched
  }
  SentPieces sent() const { return {data.data(), begin}; }
  ReceivedPieces received() { return {data.data(), begin}; }
  std::span<std::byte> of(int rank) { return received().of(rank); }
  static std::byte byte_of(int from, int to, size_t i) {
    return static_cast<std::byte>(from * 31 + to * 7 + static_cast<int>(i % 64));
  }
  void fill(int piece, int from, int to) {
    const auto bytes = of(piece);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_of(from, to, i);
  }
  void expect(int piece, int from, int to) {
    const auto bytes = of(piece);
    for (size_t i = 0; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], byte_of(from, to, i));
    ASSERT_EQ(data.back(), std::byte{0xee});
  }
  std::vector<std::byte> data;
  std::vector<int64_t> begin;
};

inline void sums_are_of_rank_order(Communicator& ranks) {
  Arrival arrive(ranks.rank());
  for (const int64_t rows : {0, 1, 3, 7}) {
    for (const int64_t width : {1, 2, 5, 67}) {
      Rows share(ranks.rank(), rows, width);
      arrive.at_any_time();
      const auto sum = ranks.reduce(Partial<float>(share.view()));
      ASSERT_TRUE(sum.ok()) << sum.status().message();
      ASSERT_EQ(sum->rows().data(), share.data.data());
      share.expect_sums(ranks.ranks(), 0);
    }
  }
}

inline void scattered_sums_are_of_rank_order(Communicator& ranks) {
  Arrival arrive(ranks.rank());
  const auto n = static_cast<size_t>(ranks.ranks()), me = static_cast<size_t>(ranks.rank());
  for (size_t round = 0; round < 4; ++round) {
    std::vector<int64_t> rows_of_rank(n), begin(n + 1);
    for (size_t r = 0; r < n; ++r) {
      rows_of_rank[r] =
          static_cast<int64_t>((r * 5 + round) % 4) * (round != 3);  // some, or all, 0
      begin[r + 1] = begin[r] + rows_of_rank[r];
    }
    const int64_t width = 5;
    Rows share(ranks.rank(), begin.back(), width), mine(rows_of_rank[me], width);
    arrive.at_any_time();
    const auto sum = ranks.reduce_scatter(Partial<float>(share.view()), rows_of_rank, mine.view());
    ASSERT_TRUE(sum.ok()) << sum.status().message();
    mine.expect_sums(ranks.ranks(), begin[me] * width);
  }
}

inline void everybody_gathers_uneven_pieces(Communicator& ranks) {
  Arrival arrive(ranks.rank());
  for (int round = 0; round < 4; ++round) {
    std::vector<int64_t> lengths;
    for (int r = 0; r < ranks.ranks(); ++r) lengths.push_back((r * 7 + round * 3) % 11);
    Pieces mine({lengths[static_cast<size_t>(ranks.rank())]}), all(lengths);
    mine.fill(0, ranks.rank(), 0);
    arrive.at_any_time();
    const bool in_place = round % 2 == 1;
    if (in_place) all.fill(ranks.rank(), ranks.rank(), 0);
    const Status status =
        ranks.all_gather(in_place ? all.of(ranks.rank()) : mine.of(0), all.received());
    ASSERT_TRUE(status.ok()) << status.message();
    for (int r = 0; r < ranks.ranks(); ++r) all.expect(r, r, 0);
  }
}

inline int64_t exchanged_bytes(int from, int to, int round) {
  return (from * 13 + to * 5 + round * 3) % 9 * (round == 2 ? 20000 : 1);
}
inline void exchanges_bring_every_piece(Communicator& ranks) {
  Arrival arrive(ranks.rank());
  for (int round = 0; round < 8; ++round) {
    std::vector<int64_t> out, in;
    for (int r = 0; r < ranks.ranks(); ++r) {
      out.push_back(exchanged_bytes(ranks.rank(), r, round));
      in.push_back(exchanged_bytes(r, ranks.rank(), round));
    }
    Pieces send(out), receive(in);
    for (int r = 0; r < ranks.ranks(); ++r) send.fill(r, ranks.rank(), r);
    arrive.at_any_time();
    const Status started = ranks.start_exchange(send.sent(), receive.received());
    ASSERT_TRUE(started.ok()) << started.message();
    if (round % 2 == 1) {
      while (!ranks.progress()) std::this_thread::yield();
    }
    const Status finished = ranks.finish_exchange();
    ASSERT_TRUE(finished.ok()) << finished.message();
    for (int r = 0; r < ranks.ranks(); ++r) receive.expect(r, r, ranks.rank());
  }
}

inline void nothing_else_during_an_exchange(Communicator& ranks) {
  if (ranks.ranks() == 1) return;  // done at once
  const std::vector<int64_t> lengths(static_cast<size_t>(ranks.ranks()), 4);
  Pieces send(lengths), receive(lengths);
  for (int r = 0; r < ranks.ranks(); ++r) send.fill(r, ranks.rank(), r);
  ASSERT_TRUE(ranks.start_exchange(send.sent(), receive.received()).ok());
  EXPECT_EQ(ranks.barrier().code(), StatusCode::kInternal);
  EXPECT_EQ(ranks.start_exchange(send.sent(), receive.received()).code(), StatusCode::kInternal);
  ASSERT_TRUE(ranks.finish_exchange().ok());
  for (int r = 0; r < ranks.ranks(); ++r) receive.expect(r, r, ranks.rank());
}

inline void windows_hold_what_was_put(Communicator& ranks) {
  Arrival arrive(ranks.rank());
  const int n = ranks.ranks(), me = ranks.rank();
  // Two halves in turn, so that an epoch is read while the next is put. A slot for each rank.
  const int64_t half = n * int64_t{sizeof(int64_t)};
  auto window = ranks.make_window(Bytes{2 * half + me});  // not the same everywhere
  ASSERT_TRUE(window.ok()) << window.status().message();
  const std::span<std::byte> memory = (*window)->memory();
  ASSERT_EQ(memory.size(), static_cast<size_t>(2 * half + me));
  ASSERT_TRUE(std::ranges::all_of(memory, [](std::byte b) { return b == std::byte{0}; }));
  ASSERT_TRUE((*window)->finish_epoch().ok());  // all have seen that
  for (int64_t epoch = 0; epoch < 40; ++epoch) {
    const auto value_of = [&](int from, int to) { return epoch * 10000 + from * 100 + to; };
    const auto is_put = [&](int from, int to) { return (from + to + epoch) % 3 != 0; };
    const int64_t base = epoch % 2 * half;
    if (epoch % 8 == 0) arrive.at_any_time();
    for (int to = 0; to < n; ++to) {
      const int64_t value = value_of(me, to);
      if (!is_put(me, to)) continue;
      const Status put = (*window)->put(to, Bytes{base + me * int64_t{sizeof value}},
                                        std::as_bytes(std::span(&value, 1)));
      ASSERT_TRUE(put.ok()) << put.message();
    }
    const Status finished = (*window)->finish_epoch();
    ASSERT_TRUE(finished.ok()) << finished.message();
    for (int from = 0; from < n; ++from) {
      if (!is_put(from, me)) continue;
      int64_t value = 0;
      std::memcpy(&value, memory.data() + base + from * int64_t{sizeof value}, sizeof value);
      ASSERT_EQ(value, value_of(from, me)) << "of rank " << from << " in epoch " << epoch;
    }
  }
  const std::byte byte{1};
  EXPECT_EQ((*window)->put(me, Bytes{2 * half + me}, std::span(&byte, 1)).code(),
            StatusCode::kInternal);
  EXPECT_EQ((*window)->put(me, Bytes{-1}, std::span(&byte, 1)).code(), StatusCode::kInternal);
  ASSERT_TRUE((*window)->finish_epoch().ok());
}

inline void barriers_hold_back_everybody(Communicator& ranks) {
  sleep_ms(10 * ranks.rank());
  std::vector<int64_t> times(2 * static_cast<size_t>(ranks.ranks())), begin(1);
  for (int r = 0; r < ranks.ranks(); ++r) begin.push_back(begin.back() + 16);
  int64_t mine[2] = {clock_us(), 0};
  ASSERT_TRUE(ranks.barrier().ok());
  mine[1] = clock_us();
  const auto all = std::as_writable_bytes(std::span(times));
  ASSERT_TRUE(ranks.all_gather(std::as_bytes(std::span(mine)), {all.data(), begin}).ok());
  for (size_t a = 0; a < times.size(); a += 2) {
    for (size_t b = 1; b < times.size(); b += 2) EXPECT_LE(times[a], times[b]);
  }
}

inline void parts_are_communicators(Communicator& ranks) {
  const int colour = ranks.rank() % 2;
  auto part = ranks.split(colour);
  ASSERT_TRUE(part.ok()) << part.status().message();
  EXPECT_EQ((*part)->ranks(), (ranks.ranks() + 1 - colour) / 2);
  EXPECT_EQ((*part)->rank(), ranks.rank() / 2);
  Rows share((*part)->rank(), 3, 5);
  ASSERT_TRUE((*part)->reduce(Partial<float>(share.view())).ok());
  share.expect_sums((*part)->ranks(), 0);
  ASSERT_TRUE(ranks.barrier().ok());  // the whole is as it was
  auto again = (*part)->split(0);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_TRUE((*again)->barrier().ok());
}

inline void traffic_is_exact(Communicator& ranks) {
  const int64_t n = ranks.ranks(), me = ranks.rank();
  const auto expect = [&](int64_t bytes, int64_t operations) {
    if (n == 1) bytes = operations = 0;
    EXPECT_EQ(ranks.traffic().bytes, bytes);
    EXPECT_EQ(ranks.traffic().operations, operations);
  };
  ASSERT_TRUE(ranks.barrier().ok() && ranks.compare("step", {}).ok());
  expect(0, 0);

  Rows share(ranks.rank(), 3, 5);
  ASSERT_TRUE(ranks.reduce(Partial<float>(share.view())).ok());
  const int64_t piece = 15 / n + (me < 15 % n);
  int64_t bytes = (15 - piece) * 4 + piece * 4 * (n - 1);
  expect(bytes, 1);

  const std::vector<int64_t> rows(static_cast<size_t>(n), 2);
  Rows all(ranks.rank(), 2 * n, 5), mine(2, 5);
  ASSERT_TRUE(ranks.reduce_scatter(Partial<float>(all.view()), rows, mine.view()).ok());
  expect(bytes += 2 * 5 * 4 * (n - 1), 2);

  Pieces gathered(std::vector<int64_t>(static_cast<size_t>(n), 7));
  ASSERT_TRUE(ranks.all_gather(gathered.of(ranks.rank()), gathered.received()).ok());
  expect(bytes += 7 * (n - 1), 3);

  std::vector<int64_t> lengths;
  for (int64_t r = 0; r < n; ++r) lengths.push_back(r + me);
  Pieces send(lengths), receive(lengths);
  ASSERT_TRUE(ranks.start_exchange(send.sent(), receive.received()).ok());
  ASSERT_TRUE(ranks.finish_exchange().ok());
  expect(bytes += n * (n - 1) / 2 + n * me - 2 * me, 4);

  auto window = ranks.make_window(Bytes{4 * n});  // four bytes for each to put into
  ASSERT_TRUE(window.ok());
  const std::byte three[3] = {};
  for (int r = 0; r < ranks.ranks(); ++r) {
    ASSERT_TRUE((*window)->put(r, Bytes{4 * me}, three).ok());
    if (ranks.rank() > 0) break;  // they put to rank 0 alone
  }
  ASSERT_TRUE((*window)->finish_epoch().ok());
  expect(bytes += 3 * (me == 0 ? n - 1 : 1), 5);
}

// Who comes early to a meeting is kept until the last one comes; one rank alone reads no clock.
inline void waiting_is_timed(Communicator& ranks) {
  ASSERT_TRUE(ranks.barrier().ok());
  const double before = ranks.seconds();
  if (ranks.rank() == 0) sleep_ms(60);
  const int64_t came = clock_us();
  ASSERT_TRUE(ranks.barrier().ok());
  const double kept = ranks.seconds() - before;
  const double whole = static_cast<double>(clock_us() - came + 2) * 1e-6;

  std::vector<int64_t> all(static_cast<size_t>(ranks.ranks())), begin;
  all[static_cast<size_t>(ranks.rank())] = came;
  for (int64_t r = 0; r <= ranks.ranks(); ++r) begin.push_back(r * int64_t{sizeof(int64_t)});
  const auto mine =
      std::as_bytes(std::span(all))
          .subspan(static_cast<size_t>(begin[static_cast<size_t>(ranks.rank())]), sizeof(int64_t));
  ASSERT_TRUE(ranks.all_gather(mine, {std::as_writable_bytes(std::span(all)).data(), begin}).ok());
  const double early = static_cast<double>(std::ranges::max(all) - came - 2) * 1e-6;
  EXPECT_LE(kept, whole);
  if (ranks.ranks() == 1) {
    EXPECT_EQ(kept, 0);
  } else {
    EXPECT_GE(kept, early);
  }
}

inline void expect_both_named(const Status& status, const std::vector<std::string>& parts) {
  ASSERT_EQ(status.code(), StatusCode::kInternal) << status.message();
  for (const std::string& part : parts) EXPECT_THAT(status.message(), ::testing::HasSubstr(part));
}

inline void disagreement_names_both(Communicator& ranks) {
  const int last = ranks.ranks() - 1;
  const std::vector<int64_t> same = {7, 64};
  ASSERT_TRUE(ranks.compare("step", same).ok());
  if (last == 0) return;
  const bool odd = ranks.rank() == last;
  const std::string rank = "rank " + std::to_string(last);
  const std::vector<int64_t> mine = {7, odd ? 65 : 64}, longer = {7, 64, 1};
  expect_both_named(ranks.compare("step", mine), {"rank 0", rank, "step [7, 64]", "step [7, 65]"});
  expect_both_named(ranks.compare(odd ? "build" : "step", same), {"rank 0", rank, "build", "step"});
  expect_both_named(ranks.compare("step", odd ? longer : same), {"rank 0", rank, "[7, 64, 1]"});
  ASSERT_TRUE(ranks.compare("step", same).ok());  // still of use
}

inline void checked_mismatches_name_both(Communicator& ranks) {
  const int last = ranks.ranks() - 1;
  if (last == 0) return;
  const bool odd = ranks.rank() == last;
  const std::string rank = "rank " + std::to_string(last);
  Rows share(ranks.rank(), 2, 3);
  Rows other(ranks.rank(), 3, 3);
  // Another kind.
  expect_both_named(odd ? ranks.reduce(Partial<float>(share.view())).status() : ranks.barrier(),
                    {"rank 0", rank, "barrier", "reduce of [2, 3]"});
  // Another size.
  expect_both_named(ranks.reduce(Partial<float>((odd ? other : share).view())).status(),
                    {"rank 0", rank, "[2, 3]", "[3, 3]"});
  // Pieces of another length, though each rank's own fits.
  std::vector<int64_t> lengths(static_cast<size_t>(ranks.ranks()), 4);
  if (odd) lengths.back() = 5;
  Pieces all(lengths);
  expect_both_named(ranks.all_gather(all.of(ranks.rank()), all.received()),
                    {"rank 0", rank, "all_gather, bytes of each rank 4"});
  // The last rank sends one byte more to rank 0 than that expects.
  std::vector<int64_t> out(static_cast<size_t>(ranks.ranks()), 4);
  if (odd) out.front() = 5;
  Pieces send(out), receive(std::vector<int64_t>(out.size(), 4));
  expect_both_named(ranks.start_exchange(send.sent(), receive.received()),
                    {rank + " sends 5 bytes to rank 0", "expects 4"});
  // In another order.
  Pieces four(std::vector<int64_t>(out.size(), 4));
  const auto gather = [&] { return ranks.all_gather(four.of(ranks.rank()), four.received()); };
  const auto reduce = [&] { return ranks.reduce(Partial<float>(share.view())).status(); };
  expect_both_named(odd ? gather() : reduce(), {"rank 0", rank, "reduce", "all_gather"});
  expect_both_named(odd ? reduce() : gather(), {"rank 0", rank, "reduce", "all_gather"});
  ASSERT_TRUE(reduce().ok());
}

inline void random_shapes_are_checked(Communicator& ranks) {
  std::mt19937 same(11);  // on all ranks
  auto window = ranks.make_window(Bytes{64});
  ASSERT_TRUE(window.ok());
  for (int step = 0; step < 200; ++step) {
    const int64_t rows = same() % 4, width = 1 + same() % 9;
    Rows share(ranks.rank(), rows, width);
    switch (same() % 4) {
      case 0:
        ASSERT_TRUE(ranks.reduce(Partial<float>(share.view())).ok());
        share.expect_sums(ranks.ranks(), 0);
        break;
      case 1:
        ASSERT_TRUE((*window)->finish_epoch().ok());
        break;
      case 2: {
        Pieces all(std::vector<int64_t>(static_cast<size_t>(ranks.ranks()), rows));
        ASSERT_TRUE(ranks.all_gather(all.of(ranks.rank()), all.received()).ok());
        break;
      }
      default:
        ASSERT_TRUE(ranks.barrier().ok());
    }
  }
}

inline void who_does_not_come_is_named(Communicator& ranks) {
  const int last = ranks.ranks() - 1;
  if (last == 0) return;
  Rows share(ranks.rank(), 2, 3);
  ASSERT_TRUE(ranks.reduce(Partial<float>(share.view())).ok());
  const auto start = clock_us();
  if (ranks.rank() == last) {
    sleep_ms(4000);  // longer than the others wait
    return;
  }
  const auto sum = ranks.reduce(Partial<float>(share.view()));
  EXPECT_EQ(sum.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(sum.status().message(), ::testing::HasSubstr("rank " + std::to_string(last) + " of"));
  EXPECT_LT(clock_us() - start, 3'900'000);
  EXPECT_EQ(ranks.barrier().code(), StatusCode::kUnavailable);  // at once, and for ever
  EXPECT_LT(clock_us() - start, 3'900'000);
}

}  // namespace transport

inline std::vector<TransportCase> transport_cases() {
  const CommOptions checked = {.timeout_seconds = 20, .check_collectives = true};
  return {
      {"SumsAreOfRankOrder", transport::sums_are_of_rank_order},
      {"ScatteredSumsAreOfRankOrder", transport::scattered_sums_are_of_rank_order},
      {"EverybodyGathersUnevenPieces", transport::everybody_gathers_uneven_pieces},
      {"ExchangesBringEveryPiece", transport::exchanges_bring_every_piece},
      {"ExchangesBringEveryPieceChecked", transport::exchanges_bring_every_piece, checked},
      {"NothingElseDuringAnExchange", transport::nothing_else_during_an_exchange},
      {"WindowsHoldWhatWasPut", transport::windows_hold_what_was_put},
      {"WindowsHoldWhatWasPutChecked", transport::windows_hold_what_was_put, checked},
      {"BarriersHoldBackEverybody", transport::barriers_hold_back_everybody},
      {"PartsAreCommunicators", transport::parts_are_communicators},
      {"TrafficIsExact", transport::traffic_is_exact},
      {"TrafficIsExactChecked", transport::traffic_is_exact, checked},
      {"WaitingIsTimed", transport::waiting_is_timed},
      {"DisagreementNamesBoth", transport::disagreement_names_both},
      {"CheckedMismatchesNameBoth", transport::checked_mismatches_name_both, checked},
      {"RandomShapesAreChecked", transport::random_shapes_are_checked, checked},
      {"WhoDoesNotComeIsNamed",
       transport::who_does_not_come_is_named,
       {.timeout_seconds = 2},
       true},
  };
}

}  // namespace rota::testing
