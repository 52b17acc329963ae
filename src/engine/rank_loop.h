// One rank of an engine of several, from its first step to its last. All ranks run this loop side
// by side, whatever started them, processes or threads:
//
//   execute      submits and cancels that came with the step before
//   prepare      the scheduler says what this rank would run
//   header       all ranks learn what all others have: tokens, messages (step_header.h)
//   messages     rank 0 -> ranks: submits, cancels; ranks -> rank 0: outputs, statistics. What rank 0 says is
//                executed, and tokens are counted anew, before the step: who comes waits for no step but
//                the one that runs. Once in a row, so that a flood of messages does not stop the steps
//   step         if any rank has tokens, all step; those without run the dummy step
//   balance      with --enable-eplb, now and then after a step: experts move (expert_balancer.h)
//   park         if none has anything, all sleep until rank 0 gets a request, or looks whether all are alive
//
// The ranks of a tensor-parallel group get the same messages at the same step and decide alike:
// their schedulers are replicas, and the header compares how many tokens they would run. Rank 0
// alone speaks to the outside. run() returns when rank 0 stops (ok), or with the error that ends
// the engine: a rank that did not come within the communicator's timeout, headers that do not fit,
// a step that failed. Whatever fails on one rank fails on all, there is no going on with fewer.
//
//   serve_rank(loaded);                     // ranks other than 0; rank 0: InProcessEngine
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "engine/engine_core.h"
#include "engine/expert_balancer.h"
#include "engine/load_engine.h"
#include "engine/outbox.h"
#include "engine/park.h"
#include "engine/rank_messages.h"
#include "engine/request_desk.h"
#include "engine/request_router.h"
#include "engine/step_header.h"
#include "platform/clock.h"

namespace rota {

// What rank 0 has beyond the others.
struct RankZero {
  RequestDesk* desk = nullptr;
  std::function<void()> step_end;  // called after outputs or statistics were delivered
  std::atomic<int64_t>* last_step_ns = nullptr;  // of Clock: when all ranks were last seen
};

class RankLoop {
 public:
  // Collective. loaded and core outlive the loop. zero: on rank 0, and there alone.
  static Result<std::unique_ptr<RankLoop>> make(LoadedEngine& loaded, EngineCore& core,
                                                const RankZero& zero = {});

  Status run();

 private:
  RankLoop(LoadedEngine& loaded, EngineCore& core, std::unique_ptr<Communicator> control,
           const RankZero& zero);

  // What this rank's share of the model's communication has come to.
  struct Communication {
    CommTraffic traffic;
    double seconds = 0;
  };
  Communication communication() const;

  // Parts of run(), in order.
  Status execute_messages();
  bool collect_messages();
  StepHeader header(int64_t tokens, bool stopping) const;
  Status exchange_messages();
  bool meets_again();
  Status step();
  Status park();

  Status execute(wire::Message message);
  Status receive(int rank, wire::Message message);
  void add_request(EngineRequest request);
  EngineClient::OutputFn answer();
  void report_stats();
  bool stats_are_due() const;
  void tell_delivered();
  EngineStats stats();
  void refresh_expert_tokens();
  bool first() const { return zero_.desk != nullptr; }
  bool leads_group() const { return control_->rank() % loaded_.ranks.shape().tp == 0; }
  void seen();

  LoadedEngine& loaded_;
  EngineCore& core_;
  std::unique_ptr<Communicator>
      control_;  // headers and messages: the model's traffic stays its own
  RankZero zero_;
  std::unique_ptr<RequestRouter> router_;     // rank 0
  std::unique_ptr<ExpertBalancer> balancer_;  // --enable-eplb
  std::vector<RequestDesk::Command> commands_;
  StepHeaders headers_;
  RankMessages messages_;
  Bell bell_;
  Outbox outbox_;
  std::string to_execute_;  // frames from rank 0
  int64_t step_ = 0;
  bool delivered_ = false;  // outputs, since step_end was called
  bool met_ = false;        // the last round was one of messages, without a step
  RankStats rank_stats_;
  const Communication before_steps_;  // of loading and warming up
  bool stats_changed_ = true;
  Clock::time_point stats_sent_at_;
  Clock::time_point expert_counts_at_;
};

// Runs a rank that is not 0 until the engine ends.
Status serve_rank(LoadedEngine& loaded);

}  // namespace rota
