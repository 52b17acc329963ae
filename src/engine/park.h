// Waiting for other ranks that may take long, without taking a core for it: sleeps between looks,
// the longer the more ranks there are, so that all together take under 2 % of a core (a look costs
// about 14 us). Late by 1.5 ms for each rank, 20 ms at most.
//
//   if (rank == 0) ... sleep ...; bell.ring();      // all others leave their bell.wait()
//   ROTA_RETURN_IF_ERROR(wait_for_all(world, 3600)); // ranks load at their own pace
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"

namespace rota {

// While the ranks are parked. Collective: rank 0 rings when the others wait, or soon will.
class Bell {
 public:
  explicit Bell(Communicator& control);  // outlives this; carries nothing else meanwhile

  Status ring();  // rank 0
  // The others. Beyond the patience an operation's timeout runs; then kUnavailable.
  Status wait(double patience_seconds);

 private:
  Communicator* control_;
  std::vector<std::byte> sent_;
  std::byte received_{};
  std::vector<int64_t> sent_begin_, received_begin_;
};

// Collective: all have come here, some of them perhaps minutes later. kUnavailable as above.
Status wait_for_all(Communicator& ranks, double patience_seconds);

}  // namespace rota
