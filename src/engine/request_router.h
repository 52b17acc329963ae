// On rank 0: which group of ranks serves which request. What clients want becomes messages to
// ranks, what groups answer goes back to the clients; and what all ranks count becomes the engine's
// statistics.
//
// Contract: on its way a request is called "ID#N", N the number of its arrival: what is still on
// its way of a request that was cancelled is never taken for an answer to another one with the same
// id. A request that brings no seed gets the one that an engine of one rank would have drawn for
// it. All ranks of a group get the same messages in the same order.
//
//   RequestRouter router(desk, {.groups = dp, .tp = tp, .engine_seed = seed});
//   for (auto& command : commands) router.route(command, messages);
//   router.deliver(output);                      // of some group
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/rank_messages.h"
#include "engine/request_desk.h"
#include "engine/spread.h"

namespace rota {

struct RouterOptions {
  int groups = 1;  // data-parallel ranks
  int tp = 1;      // ranks of each
  int64_t engine_seed = 0;
};

class RequestRouter {
 public:
  RequestRouter(RequestDesk& desk, const RouterOptions& options);  // the desk outlives it

  void route(RequestDesk::Command& command, RankMessages& messages);
  void deliver(const RequestOutput& output);  // drops what nobody waits for any more

  void note(int rank, EngineStats stats);  // of that rank, ranks = its own RankStats
  EngineStats total() const;

 private:
  struct Routed {
    std::shared_ptr<RequestDesk::Handle> handle;
    std::string id;  // the client's
    int group = 0;
    int64_t tokens = 0;  // load that it is
  };
  using Live = std::map<std::string, Routed, std::less<>>;

  void submit(RequestDesk::Submission& submission, RankMessages& messages);
  void cancel(const std::string& id, RankMessages& messages);
  void send(int group, const std::string& frame, RankMessages& messages) const;
  void forget(Live::iterator it);

  RequestDesk& desk_;
  RouterOptions options_;
  Spread spread_;
  uint64_t arrivals_ = 0;
  Live live_;                                              // by the name on its way
  std::map<std::string, std::string, std::less<>> names_;  // the client's id -> that name
  RequestOutput output_;                                   // reused
  std::vector<EngineStats> stats_;                         // [ranks]
};

}  // namespace rota
