// Ranks that are threads of one process. For tests, and for a model on one rank.
//
//   LoopbackRanks ranks(4, {.check_collectives = true});
//   ranks.run([&](Communicator& rank) { ... });      // on 4 threads at once; returns when all have
// The communicators of a group share nothing but it: each is used by its own thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace rota {

class LoopbackRanks {
 public:
  explicit LoopbackRanks(int ranks, const CommOptions& options = {});

  Communicator& communicator(int rank);

  // Calls `body` with each rank's communicator, each on a thread of its own.
  void run(const std::function<void(Communicator&)>& body);

 private:
  std::vector<std::unique_ptr<Communicator>> communicators_;
};

}  // namespace rota
