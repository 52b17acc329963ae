#include "engine/probe_exchanges.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "engine/load_agreement.h"

namespace rota {
namespace {

constexpr int64_t kValues = 1 << 14;  // of a piece: more than MPI sends without asking first
constexpr auto kPieceBytes = static_cast<int64_t>(kValues * sizeof(float));

// What rank `from` sends to rank `to`: exact in float32, as are sums of them over a thousand ranks.
float value_of(int from, int to) { return static_cast<float>(1 + from * 7 + to * 3); }

Status expect(std::span<const float> found, float expected, std::string_view from) {
  for (const float it : found) {
    if (it == expected) continue;
    return error(StatusCode::kDataLoss, "{} came from {}, expected {}", it, from, expected);
  }
  return {};
}

std::vector<int64_t> even_pieces(int ranks) {
  std::vector<int64_t> begin;
  for (int rank = 0; rank <= ranks; ++rank) begin.push_back(rank * kPieceBytes);
  return begin;
}

// A buffer with a piece for each rank.
class Pieces {
 public:
  explicit Pieces(int ranks) : values_(static_cast<size_t>(ranks * kValues)) {}
  std::span<float> of(int rank) {
    return std::span(values_).subspan(static_cast<size_t>(rank * kValues), kValues);
  }
  std::byte* bytes() { return reinterpret_cast<std::byte*>(values_.data()); }

 private:
  std::vector<float> values_;
};

Status try_sum(Communicator& world) {
  std::vector<float> values(kValues, value_of(world.rank(), 0));
  ROTA_ASSIGN_OR_RETURN(const Reduced<float> sum,
                        world.reduce(Partial<float>(MatrixView<float>(
                            values.data(), 1, Extent::rounded_up(kValues, 1), kValues))));
  float expected = 0;
  for (int rank = 0; rank < world.ranks(); ++rank) expected += value_of(rank, 0);
  return expect(sum.rows().row(0), expected, "the sum over all ranks");
}

Status try_gather(Communicator& world) {
  Pieces all(world.ranks());
  const std::vector<int64_t> begin = even_pieces(world.ranks());
  const std::vector<float> mine(kValues, value_of(world.rank(), 0));
  ROTA_RETURN_IF_ERROR(world.all_gather(std::as_bytes(std::span(mine)), {all.bytes(), begin}));
  for (int rank = 0; rank < world.ranks(); ++rank) {
    ROTA_RETURN_IF_ERROR(expect(all.of(rank), value_of(rank, 0), fmt::format("rank {}", rank)));
  }
  return {};
}

Status try_exchange(Communicator& world) {
  Pieces send(world.ranks());
  Pieces receive(world.ranks());
  for (int rank = 0; rank < world.ranks(); ++rank) {
    std::ranges::fill(send.of(rank), value_of(world.rank(), rank));
  }
  const std::vector<int64_t> begin = even_pieces(world.ranks());
  ROTA_RETURN_IF_ERROR(world.start_exchange({send.bytes(), begin}, {receive.bytes(), begin}));
  ROTA_RETURN_IF_ERROR(world.finish_exchange());
  for (int rank = 0; rank < world.ranks(); ++rank) {
    ROTA_RETURN_IF_ERROR(
        expect(receive.of(rank), value_of(rank, world.rank()), fmt::format("rank {}", rank)));
  }
  return {};
}

Status try_window(Communicator& world) {
  ROTA_ASSIGN_OR_RETURN(const std::unique_ptr<CommWindow> window,
                        world.make_window(Bytes{world.ranks() * kPieceBytes}));
  std::vector<float> piece(kValues);
  for (int rank = 0; rank < world.ranks(); ++rank) {
    std::ranges::fill(piece, value_of(world.rank(), rank));
    ROTA_RETURN_IF_ERROR(
        window->put(rank, Bytes{world.rank() * kPieceBytes}, std::as_bytes(std::span(piece))));
  }
  ROTA_RETURN_IF_ERROR(window->finish_epoch());
  for (int rank = 0; rank < world.ranks(); ++rank) {
    std::memcpy(piece.data(), window->memory().data() + rank * kPieceBytes, kPieceBytes);
    ROTA_RETURN_IF_ERROR(expect(piece, value_of(rank, world.rank()), fmt::format("rank {}", rank)));
  }
  return {};
}

}  // namespace

std::vector<ProbeStep> probe_exchanges(Communicator& world) {
  struct Kind {
    const char* what;
    Status (*attempt)(Communicator&);
  };
  constexpr Kind kKinds[] = {{"sum", try_sum},
                             {"all-gather", try_gather},
                             {"all-to-all", try_exchange},
                             {"one-sided windows", try_window}};
  std::vector<ProbeStep> steps;
  for (const Kind& kind : kKinds) {
    const Status mine = kind.attempt(world);
    // A wrong value is known to one rank alone; a communicator that failed tells nobody anything.
    const Status all =
        mine.ok() || mine.code() == StatusCode::kDataLoss ? agree_ok(world, mine) : mine;
    steps.push_back({kind.what, all.message()});
    if (!all.ok()) break;
  }
  return steps;
}

}  // namespace rota
