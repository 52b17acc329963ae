#include "engine/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace rota {

namespace {

// The row of position p speaks of prompt token p + 1. The first such row of a chunk that begins at
// `first`: logprobs that are known from before a preemption are not asked for again.
int64_t first_prompt_logprob_row(const Sequence& sequence, int64_t first) {
  return std::max(first, static_cast<int64_t>(sequence.prompt_logprobs.size()) - 1);
}

}  // namespace

int64_t Chunk::prompt_logprob_rows() const {
  if (!sequence->wants_prompt_logprobs() || sequence->answered) return 0;
  const int64_t last = std::min(end(), sequence->prompt_tokens - 1);
  return std::max<int64_t>(0, last - first_prompt_logprob_row(*sequence, first));
}

Scheduler::Scheduler(SchedulerLimits limits, KvManager& kv) : limits_(limits), kv_(kv) {
  // Each running sequence needs a token a step, and a slot where there are states.
  limits_.max_num_seqs =
      std::min({limits_.max_num_seqs, limits_.max_num_batched_tokens, kv.max_sequences()});
  running_.reserve(static_cast<size_t>(limits_.max_num_seqs));
  chunks_.reserve(static_cast<size_t>(limits_.max_num_seqs));
}

void Scheduler::add(Sequence& sequence) {
  sequence.phase = Phase::kWaiting;
  waiting_.insert(&sequence);
}

void Scheduler::remove(Sequence& sequence) {
  if (sequence.phase == Phase::kWaiting) waiting_.erase(&sequence);
  if (sequence.phase == Phase::kRunning) std::erase(running_, &sequence);
  sequence.phase = Phase::kFinished;
  kv_.release(sequence.kv);
}

std::span<const Chunk> Scheduler::schedule() {
  chunks_.clear();
  budget_ = limits_.max_num_batched_tokens;
  prompt_logprob_rows_ = limits_.max_prompt_logprob_rows;
  short_of_pages_ = false;
  schedule_running(true);
  schedule_running(false);
  if (!short_of_pages_) schedule_waiting();
  keep_one_alone();
  return chunks_;
}

// The others keep the room that they were given and sit the step out.
void Scheduler::keep_one_alone() {
  const auto alone = std::find_if(chunks_.begin(), chunks_.end(), [](const Chunk& chunk) {
    return chunk.first < chunk.sequence->alone_until;
  });
  if (alone != chunks_.end()) chunks_ = {*alone};
}

void Scheduler::repeat_alone() {
  while (!chunks_.empty()) {
    const Chunk chunk = chunks_.back();
    chunk.sequence->alone_until = chunk.end();
    preempt(*chunk.sequence);  // takes it from chunks_ too
  }
}

void Scheduler::schedule_running(bool decodes) {
  // By index: a preemption shortens the list behind the sequence that asked for it.
  for (size_t i = 0; i < running_.size() && budget_ > 0; ++i) {
    if (running_[i]->decoding() == decodes) schedule_one(*running_[i]);
  }
}

// Tokens of the next chunk: what the step's budgets of tokens and of prompt logprobs allow, up to
// the next snapshot.
int64_t Scheduler::chunk_limit(Sequence& sequence) const {
  const int64_t to_snapshot = kv_.next_snapshot(sequence.kv, sequence.computed) - sequence.computed;
  const Chunk whole{&sequence, sequence.computed,
                    std::min({sequence.remaining(), budget_, to_snapshot})};
  if (whole.prompt_logprob_rows() <= prompt_logprob_rows_) return whole.tokens;
  return first_prompt_logprob_row(sequence, whole.first) + prompt_logprob_rows_ - whole.first;
}

// False if there is no room for a single token of it in this step.
bool Scheduler::schedule_one(Sequence& sequence) {
  const int64_t wanted = chunk_limit(sequence);
  if (wanted <= 0) return false;
  int64_t room = kv_.extend(sequence.kv, sequence.computed, wanted);
  while (room == 0) {
    short_of_pages_ = true;
    // The last in the order keeps its pages and sits the step out: those before it go on.
    if (!preempt_for(sequence)) return false;
    room = kv_.extend(sequence.kv, sequence.computed, wanted);
  }
  const Chunk chunk{&sequence, sequence.computed, room};
  chunks_.push_back(chunk);
  budget_ -= room;
  prompt_logprob_rows_ -= chunk.prompt_logprob_rows();
  return true;
}

bool Scheduler::preempt_for(const Sequence& sequence) {
  if (running_.back() == &sequence) return false;
  preempt(*running_.back());
  return true;
}

void Scheduler::preempt(Sequence& sequence) {
  unschedule(sequence);
  std::erase(running_, &sequence);
  kv_.release(sequence.kv);
  sequence.computed = 0;
  sequence.phase = Phase::kWaiting;
  waiting_.insert(&sequence);
  ++preemptions_;
}

void Scheduler::unschedule(const Sequence& sequence) {
  const auto chunk = std::find_if(chunks_.begin(), chunks_.end(),
                                  [&](const Chunk& it) { return it.sequence == &sequence; });
  if (chunk == chunks_.end()) return;
  budget_ += chunk->tokens;
  prompt_logprob_rows_ += chunk->prompt_logprob_rows();
  chunks_.erase(chunk);
}

void Scheduler::schedule_waiting() {
  while (budget_ > 0 && !waiting_.empty() && running() < limits_.max_num_seqs) {
    Sequence& sequence = **waiting_.begin();
    if (!start(sequence)) return;
    waiting_.erase(waiting_.begin());
    sequence.phase = Phase::kRunning;
    running_.insert(std::upper_bound(running_.begin(), running_.end(), &sequence, RunsBefore{}),
                    &sequence);
    if (!schedule_one(sequence)) return;
  }
}

// Takes the prefix that is known. False, with nothing taken, while the pages for all of its tokens
// are not there: starting it would only push others out.
bool Scheduler::start(Sequence& sequence) {
  const bool unfinished_prompt = sequence.wants_prompt_logprobs() && !sequence.answered;
  const int64_t cached = kv_.begin(sequence.kv, sequence.tokens, sequence.request.cache_salt,
                                   unfinished_prompt ? ReadCache::kNo : ReadCache::kYes,
                                   sequence.longest(), sequence.prompt_tokens);
  const int64_t needed = kv_.pages_to_extend(sequence.kv, cached, sequence.total() - cached);
  // One more page for each that runs: they grow meanwhile.
  if (running() > 0 && needed + running() > kv_.available_pages()) {
    kv_.release(sequence.kv);
    return false;
  }
  sequence.computed = cached;
  if (!sequence.started) {
    sequence.started = true;
    sequence.started_at = Clock::now();
    sequence.cached_tokens = std::min(cached, sequence.prompt_tokens);
    if (!unfinished_prompt) prefix_queries_ += sequence.total();
    prefix_hits_ += cached;
  }
  return true;
}

}  // namespace rota
