// What the next step computes: continuous batching with chunked prefill.
//
// Contract: every running sequence that decodes gets its token first; what is left of
// max_num_batched_tokens goes to prefills, then to waiting sequences, in order of priority and
// arrival and never past one another. When pages run out the sequence that goes last gives its
// pages back and waits again (it is recomputed later, from the prefix cache where that still has
// it). The first in the order can always go on, and a sequence that could never fit alone is not
// accepted (check_request), so that there is no deadlock and no starvation. Of a model with
// recurrent layers chunks end where a snapshot of the state is to be taken.
//
//   Scheduler scheduler(limits, kv);
//   scheduler.add(sequence);
//   for (const Chunk& chunk : scheduler.schedule()) ...   // compute it, then sequence.computed +=
//   n
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "engine/kv_manager.h"
#include "engine/sequence.h"

namespace rota {

struct SchedulerLimits {
  int64_t max_num_seqs = 0;
  int64_t max_num_batched_tokens = 0;
  int64_t max_prompt_logprob_rows = 0;  // rows of logits a step, beyond one a sequence
};

// Tokens [first, first + tokens) of a sequence.
struct Chunk {
  Sequence* sequence = nullptr;
  int64_t first = 0;
  int64_t tokens = 0;

  int64_t end() const { return first + tokens; }
  bool reaches_the_end() const { return end() == sequence->total(); }
  // How many of its rows say something of a prompt token that has no logprobs yet.
  int64_t prompt_logprob_rows() const;
};

class Scheduler {
 public:
  Scheduler(SchedulerLimits limits, KvManager& kv);

  void add(Sequence& sequence);
  // Finished or cancelled: frees its pages now.
  void remove(Sequence& sequence);

  // After a step that failed half way: all of its sequences begin again, and each is stepped alone
  // until it has passed where it was. For models whose steps change a state in place.
  void repeat_alone();

  // Valid until the next call. Empty if nothing is left to do. Does not allocate while all running
  // sequences decode.
  std::span<const Chunk> schedule();

  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t preemptions() const { return preemptions_; }
  int64_t prefix_queries() const { return prefix_queries_; }  // tokens
  int64_t prefix_hits() const { return prefix_hits_; }        // tokens
  void reset_counters() { preemptions_ = prefix_queries_ = prefix_hits_ = 0; }

 private:
  void schedule_running(bool decodes);
  bool schedule_one(Sequence& sequence);
  bool preempt_for(const Sequence& sequence);
  void preempt(Sequence& sequence);
  void schedule_waiting();
  bool start(Sequence& sequence);
  int64_t chunk_limit(Sequence& sequence) const;
  void keep_one_alone();
  void unschedule(const Sequence& sequence);

  SchedulerLimits limits_;
  KvManager& kv_;
  std::set<Sequence*, RunsBefore> waiting_;
  std::vector<Sequence*> running_;  // in order of RunsBefore
  std::vector<Chunk> chunks_;
  int64_t budget_ = 0;               // tokens left of this step
  int64_t prompt_logprob_rows_ = 0;  // left of this step
  bool short_of_pages_ = false;      // in this step
  int64_t preemptions_ = 0;
  int64_t prefix_queries_ = 0;
  int64_t prefix_hits_ = 0;
};

}  // namespace rota
