// The engine as an object that is stepped by one thread: requests in, a step at a time, tokens out.
//
// Contract: one step = schedule, forward, sample, deliver. A request's tokens do not depend on what
// else is in its steps (design section 6). What is wrong with one request (nothing left to choose,
// logits that are not finite, damaged expert weights) ends that request alone. A weights file that
// has become shorter ends the process (platform/mapped_file.h) before a token of that step is out.
// While all running requests decode, a step does not allocate (outputs without logprobs and
// experts).
//
//   ROTA_ASSIGN_OR_RETURN(auto core, EngineCore::make(loaded));
//   core->add(request, on_output);
//   while (core->has_work()) core->step();
//
// Ranks that share a model step together: each says how many tokens it has before any of them runs
// (rank_loop.h). A forward that fails is then the end of the engine, as the other ranks wait in the
// middle of theirs.
//
//   const int64_t mine = core->prepare_step();
//   ... tokens_of_group = what each data-parallel group says ...
//   ROTA_RETURN_IF_ERROR(core->run_step({tokens_of_group, decodes on all groups}));
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/engine_client.h"
#include "engine/expert_recorder.h"
#include "engine/kv_manager.h"
#include "engine/load_engine.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/step_captures.h"
#include "engine/step_plan.h"
#include "platform/memory.h"
#include "tensor/matrix.h"

namespace rota {

class EngineCore {
 public:
  using OutputFn = EngineClient::OutputFn;

  // Pages that this process has waited for so far: those of a step are counted and warned of.
  using FaultCounter = std::function<int64_t()>;

  // loaded outlives the core. Runs warm-up steps and captures decode steps (step_captures.h), so
  // that the first request pays for nothing.
  // Damaged weights that it meets are a warning: requests that need them will fail.
  static Result<std::unique_ptr<EngineCore>> make(LoadedEngine& loaded,
                                                  FaultCounter page_faults = major_page_faults);

  // Checks the request (check_request, check_queue) and queues it. kInvalidArgument: also an id
  // that is in use.
  Status add(EngineRequest request, OutputFn on_output);

  // Frees the request's pages at once; inside an output function, when the step's outputs are out.
  void cancel(std::string_view id);

  bool has_work() const { return !live_.empty(); }
  void step();  // of a model on one rank

  // The halves of a step. Between them no request is added or cancelled.
  int64_t prepare_step();  // the tokens that this rank will run; 0: nothing to do
  // They are one for each sequence: a decode step; also with none.
  bool prepared_decodes() const { return prepared_decodes_; }
  // step.tokens_of_group: this group's is what prepare_step() said; if that is 0 it runs the dummy
  // step. Only a failure that is no single request's is returned.
  Status run_step(const StepTokens& step);
  // Instead of run_step(): what was prepared is prepared anew, with requests that come before that.
  void put_off_step() { prepared_ = {}; }

  // Ends every request with kError and this status.
  void fail_all(const Status& status);

  const EngineInfo& info() const { return info_; }
  // stats.expert_tokens is filled by refresh_expert_tokens() alone: it allocates.
  const EngineStats& stats();
  void refresh_expert_tokens();

  int64_t kv_pages_used() const { return kv_.used_pages(); }
  int64_t state_slots_used() const { return kv_.used_slots(); }

 private:
  struct RowResult {
    Status status;
    Sampled sampled;  // of a prompt row: logprobs alone
  };
  EngineCore(LoadedEngine& loaded, Matrix<float> logits, FaultCounter page_faults);

  // Parts of make(), in order.
  Status warm_up();
  Status capture_steps();
  Status capture_step(int64_t size);
  void forget_warm_up();
  Status run_alike();
  std::unique_ptr<Sequence> make_sequence(EngineRequest request, OutputFn on_output);
  Status run(std::span<const Chunk> chunks);
  void run_each_alone(std::span<const Chunk> chunks);
  bool alone() const { return loaded_.ranks.world->ranks() == 1; }
  bool has_states() const { return !loaded_.model->kv_spec().state.layers.empty(); }
  Status forward();
  void sample_rows();
  void advance(std::span<const Chunk> chunks);
  void take_rows(Sequence& sequence, size_t first_use, size_t last_use);
  void append_token(Sequence& sequence, size_t use_index);
  void begin_answer(Sequence& sequence);
  void clear_output(const Sequence& sequence);
  void deliver(Sequence& sequence);
  void finish_with_error(Sequence& sequence, const Status& status);
  int64_t operations() const;
  void count_step(int64_t tokens, int64_t faults_before, bool replayed);
  void reap();

  LoadedEngine& loaded_;
  EngineInfo info_;
  KvManager kv_;
  Scheduler scheduler_;
  StepPlan plan_;
  Sampler sampler_;
  ExpertRecorder recorder_;
  Matrix<float> logits_;            // [max_logit_rows, V]
  std::vector<RowResult> results_;  // [max_logit_rows]
  std::vector<int32_t> traced_rows_;
  std::vector<int32_t> trace_of_use_;  // [uses] index into the recorder's rows, or -1

  std::map<std::string, std::unique_ptr<Sequence>, std::less<>> live_;
  std::vector<Sequence*> gone_;  // to be destroyed when the step's outputs are out
  RequestOutput output_;         // of the sequence whose rows are being taken; reused
  bool in_step_ = false;
  std::span<const Chunk> prepared_;  // of the step that has not run yet
  int64_t prepared_tokens_ = 0;
  bool prepared_decodes_ = true;
  StepTokens step_;  // of the step that runs
  StepCaptures captures_;
  int64_t forward_operations_ = 0;  // of the last forward pass, with other ranks
  uint64_t arrivals_ = 0;
  EngineStats stats_;
  FaultCounter page_faults_;
  std::optional<Clock::time_point> last_fault_warning_;
};

}  // namespace rota
