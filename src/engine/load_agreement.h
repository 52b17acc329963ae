// What the ranks of an engine must agree on while they load, so that one that cannot go on, or has
// other files, other options or another build, is an error on all of them and names both sides.
//
// Contract: all functions are collective, and patient: ranks load at their own pace, and wait for
// one another for up to kLoadPatienceSeconds without taking a core.
//
//   Status mine = open_everything();
//   ROTA_RETURN_IF_ERROR(agree_ok(world, mine));                  // mine, or the first rank's that failed
//   ROTA_RETURN_IF_ERROR(agree_same(world, {{"config.json", hash}, ...}));
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"

namespace rota {

inline constexpr double kLoadPatienceSeconds = 4 * 3600;

std::string host_name();  // of this host

// What each rank says, on every rank.
Result<std::vector<std::string>> gather_texts(Communicator& world, std::string_view mine);

// Ok if it is on all ranks.
Status agree_ok(Communicator& world, const Status& mine);

// agree_ok() for a piece of work that meets the others on its way: whoever fails in it before or
// after they met has told them once, and once is enough.
//
//   LoadMeeting meeting(world);
//   options.ranks.meet = [&](const Status& status) { return meeting.meet(status); };
//   ROTA_RETURN_IF_ERROR(meeting.meet(work(options)));
class LoadMeeting {
 public:
  explicit LoadMeeting(Communicator& world) : world_(world) {}

  Status meet(const Status& mine) {
    if (over_) return mine;
    Status all = agree_ok(world_, mine);
    over_ = !all.ok();
    return all;
  }

 private:
  Communicator& world_;
  bool over_ = false;  // an error is everybody's: the others have left
};

// One thing that must be the same everywhere: "config.json", "5f3a..."
struct Agreed {
  std::string what;
  std::string value;
};

// kInvalidArgument: the first difference, with the ranks, their hosts and both values.
Status agree_same(Communicator& world, std::span<const Agreed> mine);

// The ranks that share this host's memory.
struct HostRanks {
  std::vector<int> ranks = {0};  // ascending
  int index = 0;                 // of this one among them
  int64_t available_bytes = 0;   // the least that one of them found
  bool bound = true;             // each may run on CPUs of its own

  int count() const { return static_cast<int>(ranks.size()); }
};

Result<HostRanks> find_host_ranks(Communicator& world);

// Of one rank's value, everybody's: values are plain.
template <typename T>
Result<std::vector<T>> gather_values(Communicator& world, const T& mine) {
  std::vector<T> all(static_cast<size_t>(world.ranks()));
  std::vector<int64_t> begin;
  for (size_t rank = 0; rank <= all.size(); ++rank) {
    begin.push_back(static_cast<int64_t>(rank * sizeof(T)));
  }
  ROTA_RETURN_IF_ERROR(world.all_gather(std::as_bytes(std::span(&mine, 1)),
                                        {std::as_writable_bytes(std::span(all)).data(), begin}));
  return all;
}

}  // namespace rota
