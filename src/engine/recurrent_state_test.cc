// States of recurrent layers under the scheduler and the prefix cache. In place of a model runs a
// recurrence over token ids whose state says exactly which tokens went in, in which order: a step
// that goes on from any other state than that of its own history is seen at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "engine/kv_manager.h"
#include "engine/scheduler.h"
#include "engine/step_plan.h"

namespace rota {
namespace {

KvSpec hybrid_spec(std::vector<int64_t> windows = {0}) {
  KvSpec spec;
  spec.shape = {.kv_heads = 1, .head_dim = 16};
  for (const int64_t window : windows) spec.groups.push_back({.window = window, .layers = {1}});
  spec.page_bytes = Bytes{4096};
  spec.state = {.layers = {0, 2}, .layer_bytes = Bytes{64}};
  return spec;
}

std::vector<int32_t> tokens_of(int64_t count, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

uint64_t after(uint64_t state, int32_t token) {
  return (state ^ static_cast<uint64_t>(token)) * 0x9e3779b97f4a7c15ULL + 1;
}

uint64_t after_all(std::span<const int32_t> tokens) {
  return std::accumulate(tokens.begin(), tokens.end(), uint64_t{0}, after);
}

struct MachineOptions {
  KvSpec spec = hybrid_spec();
  int64_t pages = 1000;
  int64_t slots = 16;
  int64_t interval = 0;
  int64_t max_num_seqs = 4;
  int64_t step_tokens = 512;
  bool prefix_caching = true;
};

// Scheduler, cache and recurrence, stepped as the engine steps them.
class Machine {
 public:
  explicit Machine(const MachineOptions& options)
      : states_(static_cast<size_t>(options.slots), 0xbad),
        kv_(options.spec, options.pages, options.prefix_caching,
            {.slots = options.slots,
             .snapshot_interval = options.interval,
             .copy = [this](int32_t from, int32_t to) { state(to) = state(from), ++copies_; }}),
        scheduler_({.max_num_seqs = options.max_num_seqs,
                    .max_num_batched_tokens = options.step_tokens,
                    .max_prompt_logprob_rows = 0},
                   kv_),
        has_states_(!options.spec.state.layers.empty()) {}

  Sequence& add(std::vector<int32_t> prompt, int64_t max_tokens, std::string salt = "") {
    Sequence& it = *sequences_.emplace_back(std::make_unique<Sequence>());
    it.arrival = sequences_.size();
    it.prompt_tokens = static_cast<int64_t>(prompt.size());
    it.tokens = std::move(prompt);
    it.request.sampling.max_tokens = max_tokens;
    it.request.cache_salt = std::move(salt);
    scheduler_.add(it);
    return it;
  }

  // One step; the chunks that it had.
  std::vector<Chunk> step() {
    const auto span = scheduler_.schedule();
    std::vector<Chunk> chunks(span.begin(), span.end());
    std::set<int32_t> slots;
    for (const Chunk& chunk : chunks) {
      compute(chunk);
      EXPECT_TRUE(!has_states_ || slots.insert(chunk.sequence->kv.state_slot).second);
      chunk.sequence->computed = chunk.end();
      kv_.commit(chunk.sequence->kv, chunk.sequence->tokens, chunk.end());
      if (chunk.reaches_the_end()) grow(*chunk.sequence);
    }
    return chunks;
  }

  // The step's model fails after it has moved every state.
  void failed_step() {
    for (const Chunk& chunk : scheduler_.schedule()) state(chunk.sequence->kv.state_slot) = 0xbad;
    scheduler_.repeat_alone();
  }

  void run() {
    while (scheduler_.running() + scheduler_.waiting() > 0) {
      if (step().empty()) FAIL() << "nothing to do, and not done";
    }
  }

  // Runs a prompt alone for one token; how much of it was found in the cache.
  int64_t cached(std::vector<int32_t> prompt, const std::string& salt = "") {
    const Sequence& sequence = add(std::move(prompt), 1, salt);
    run();
    return sequence.cached_tokens;
  }

  void expect_nothing_held() const {
    EXPECT_EQ(kv_.used_pages(), 0);
    EXPECT_EQ(kv_.used_slots(), 0);
  }

  KvManager& kv() { return kv_; }
  Scheduler& scheduler() { return scheduler_; }
  int64_t copies() const { return copies_; }

 private:
  uint64_t& state(int32_t slot) { return states_[static_cast<size_t>(slot)]; }

  void compute(const Chunk& chunk) {
    if (!has_states_) return;
    const std::vector<int32_t>& tokens = chunk.sequence->tokens;
    uint64_t& it = state(chunk.sequence->kv.state_slot);
    if (chunk.first == 0) it = 0;
    const auto split = static_cast<size_t>(chunk.first);
    ASSERT_EQ(it, after_all(std::span(tokens).first(split))) << "at token " << chunk.first;
    it = after_all(std::span(tokens).first(static_cast<size_t>(chunk.end())));
  }

  void grow(Sequence& sequence) {
    sequence.tokens.push_back(static_cast<int32_t>(sequence.total() % 7));
    if (sequence.generated() >= sequence.request.sampling.max_tokens) scheduler_.remove(sequence);
  }

  std::vector<uint64_t> states_;
  int64_t copies_ = 0;
  KvManager kv_;
  Scheduler scheduler_;
  bool has_states_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

std::vector<int64_t> chunk_ends(Machine& machine) {
  std::vector<int64_t> ends;
  while (machine.scheduler().running() + machine.scheduler().waiting() > 0) {
    for (const Chunk& chunk : machine.step()) ends.push_back(chunk.end());
  }
  return ends;
}

TEST(Snapshots, AreTakenAtTheLastWholeBlockOfAPromptAndAtTheInterval) {
  using Ends = std::vector<int64_t>;
  Machine last({.interval = 0});
  last.add(tokens_of(300), 1);
  EXPECT_EQ(chunk_ends(last), (Ends{256, 300}));
  EXPECT_EQ(last.kv().snapshots(), 1);

  Machine both({.interval = 192});
  both.add(tokens_of(300), 90);
  const Ends ends = chunk_ends(both);
  EXPECT_EQ(Ends(ends.begin(), ends.begin() + 4), (Ends{192, 256, 300, 301}));
  EXPECT_EQ(both.kv().snapshots(), 3);  // 384 is passed while it decodes
  EXPECT_EQ(both.copies(), 3);
}

TEST(Snapshots, APromptNeverEndsInOneAndAShortOneHasNone) {
  for (const auto& [prompt, expected] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 0}, {64, 0}, {65, 1}, {128, 1}, {129, 1}}) {
    Machine machine({});
    machine.cached(tokens_of(prompt));
    EXPECT_EQ(machine.kv().snapshots(), expected) << prompt;
  }
}

TEST(Snapshots, NoneWithoutAPrefixCache) {
  Machine machine({.interval = 64, .prefix_caching = false});
  machine.add(tokens_of(300), 2);
  EXPECT_EQ(chunk_ends(machine), (std::vector<int64_t>{300, 301}));
  EXPECT_EQ(machine.cached(tokens_of(300)), 0);
  EXPECT_EQ(machine.copies(), 0);
  machine.expect_nothing_held();
}

// Pages alone would give more: the state is known at a snapshot only.
TEST(Reuse, GoesOnFromTheNearestSnapshot) {
  Machine last({.interval = 0});
  EXPECT_EQ(last.cached(tokens_of(300)), 0);
  EXPECT_EQ(last.cached(tokens_of(600)), 256);
  EXPECT_EQ(last.cached(tokens_of(250)), 0);
  EXPECT_EQ(last.cached(tokens_of(256)), 192);  // by the snapshot of the one before
  last.expect_nothing_held();

  Machine regular({.interval = 128});
  EXPECT_EQ(regular.cached(tokens_of(300)), 0);
  EXPECT_EQ(regular.cached(tokens_of(250)), 128);
  EXPECT_EQ(regular.cached(tokens_of(200)), 192);
  EXPECT_EQ(regular.cached(tokens_of(600)), 256);
  regular.expect_nothing_held();
}

TEST(Reuse, TwoRunningSequencesShareAPrefixAndItsSnapshotsNotTheirStates) {
  Machine machine({.interval = 128});
  std::vector<int32_t> other = tokens_of(500);
  other[400] = -1;
  machine.add(tokens_of(500), 5);
  machine.add(other, 5);
  machine.run();
  EXPECT_EQ(machine.kv().snapshots(), 3 + 2);  // 128, 256, 384; 448 of each
  Sequence& again = machine.add(tokens_of(500), 30);
  Sequence& again_other = machine.add(other, 30);
  machine.run();
  EXPECT_EQ(again.cached_tokens, 448);
  EXPECT_EQ(again_other.cached_tokens, 448);
  machine.expect_nothing_held();
}

TEST(Reuse, SaltsDoNotShareSnapshots) {
  Machine machine({.interval = 64});
  machine.cached(tokens_of(200), "a");
  EXPECT_EQ(machine.cached(tokens_of(200), "b"), 0);
  EXPECT_EQ(machine.cached(tokens_of(200), "a"), 192);
  machine.expect_nothing_held();
}

TEST(Reuse, NeedsTheWindowsPagesToo) {
  Machine machine({.spec = hybrid_spec({0, 128}), .pages = 60, .interval = 64});
  EXPECT_EQ(machine.cached(tokens_of(64 * 10 + 1)), 0);
  EXPECT_EQ(machine.cached(tokens_of(64 * 10 + 1)), 64 * 10);
  // Of a long other prompt: takes the pages that the window has passed, which were idle for
  // longest.
  EXPECT_EQ(machine.cached(tokens_of(64 * 12, 5000)), 0);
  EXPECT_EQ(machine.cached(tokens_of(64 * 10 + 1)), 64 * 10);
  // The snapshot at 256 is gone with the window's page of its block, or is of no use without those.
  EXPECT_EQ(machine.cached(tokens_of(64 * 4 + 1)), 0);
  machine.expect_nothing_held();
}

TEST(SnapshotBudget, TheOneNotUsedForLongestGoesFirst) {
  Machine machine({.slots = 3, .max_num_seqs = 1});
  for (const int32_t first : {1000, 2000}) machine.cached(tokens_of(100, first));
  EXPECT_EQ(machine.cached(tokens_of(100, 1000)), 64);  // used: 2000 is the oldest now
  machine.cached(tokens_of(100, 3000));
  EXPECT_EQ(machine.kv().snapshots(), 2);
  EXPECT_EQ(machine.cached(tokens_of(100, 1000)), 64);
  EXPECT_EQ(machine.cached(tokens_of(100, 3000)), 64);
  EXPECT_EQ(machine.cached(tokens_of(100, 2000)), 0);
  machine.expect_nothing_held();
}

TEST(SnapshotBudget, ASnapshotGoesWithThePagesOfItsBlock) {
  Machine machine({.pages = 8});
  machine.cached(tokens_of(64 * 5 + 1));
  EXPECT_EQ(machine.kv().snapshots(), 1);
  machine.cached(tokens_of(64 * 5 + 1, 5000));  // takes three of those pages, the tail's first
  EXPECT_EQ(machine.kv().snapshots(), 1);
  EXPECT_EQ(machine.cached(tokens_of(64 * 5 + 1, 5000)), 64 * 5);
  machine.expect_nothing_held();
}

// With a slot for each running sequence and no more, snapshots live in those of sequences that do
// not run, and the last sequence to start takes over the very slot that it goes on from.
TEST(SnapshotBudget, WithoutSpareSlotsASequenceTakesOverTheSnapshot) {
  Machine machine({.slots = 2, .max_num_seqs = 2});
  machine.cached(tokens_of(200));
  EXPECT_EQ(machine.kv().snapshots(), 1);
  machine.add(tokens_of(30, 9000), 100);
  machine.step();
  const int64_t copies = machine.copies();
  Sequence& again = machine.add(tokens_of(200), 100);
  machine.step();
  EXPECT_EQ(again.cached_tokens, 192);
  EXPECT_EQ(machine.copies(), copies);
  EXPECT_EQ(machine.kv().used_slots(), 2);
  EXPECT_EQ(machine.kv().snapshots(), 0);
  machine.run();
  machine.expect_nothing_held();
}

TEST(SlotPool, LimitsTheRunningSequences) {
  Machine machine({.slots = 3, .max_num_seqs = 8});
  for (int32_t i = 0; i < 6; ++i) machine.add(tokens_of(70, 1000 * i), 80);
  while (machine.scheduler().waiting() > 0) {
    machine.step();
    ASSERT_LE(machine.scheduler().running(), 3);
    ASSERT_EQ(machine.kv().used_slots(), machine.scheduler().running());
  }
  machine.run();
  machine.expect_nothing_held();
}

TEST(SlotPool, StepsNameTheSlot) {
  Machine machine({});
  machine.add(tokens_of(10), 4);
  machine.add(tokens_of(10), 4);
  machine.step();
  StepPlan plan({.max_tokens = 64, .max_sequences = 4, .max_logit_rows = 8, .kv_groups = 1});
  const auto chunks = machine.scheduler().schedule();
  plan.build(chunks);
  ASSERT_EQ(plan.batch().chunks.size(), 2);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(plan.batch().chunks[i].state_slot, chunks[i].sequence->kv.state_slot);
    EXPECT_GE(plan.batch().chunks[i].state_slot, 0);
  }
}

// A sequence that waits for pages is looked up in each step: it must not copy a state each time.
TEST(SlotPool, ASequenceThatCannotStartHoldsAndCopiesNothing) {
  Machine machine({.pages = 8});
  machine.cached(tokens_of(100));
  machine.add(tokens_of(300, 5000), 60);
  machine.step();
  Sequence& late = machine.add(tokens_of(300), 1);
  const int64_t copies = machine.copies();
  for (int i = 0; i < 5; ++i) machine.step();
  EXPECT_EQ(late.phase, Phase::kWaiting);
  EXPECT_EQ(machine.kv().used_slots(), 1);
  EXPECT_EQ(machine.copies(), copies);
  machine.run();
  machine.expect_nothing_held();
}

TEST(Preemption, GivesTheSlotBackAndRestartsFromASnapshot) {
  Machine machine({.pages = 12, .interval = 64});
  for (int32_t i = 0; i < 4; ++i) machine.add(tokens_of(70, 1000 * i), 150);
  int64_t restarts_from_snapshots = 0;
  while (machine.scheduler().running() + machine.scheduler().waiting() > 0) {
    const int64_t preempted = machine.scheduler().preemptions();
    for (const Chunk& chunk : machine.step()) {
      // A chunk of a sequence with answers that is no decode: it was set back.
      const bool again = chunk.sequence->generated() > 1 && chunk.tokens > 1;
      restarts_from_snapshots += again && chunk.first > 0 && preempted > 0 ? 1 : 0;
    }
    ASSERT_EQ(machine.kv().used_slots(), machine.scheduler().running());
  }
  EXPECT_GT(machine.scheduler().preemptions(), 0);
  EXPECT_GT(restarts_from_snapshots, 0);
  machine.expect_nothing_held();
}

// What a failed step did to states is undone: each of its sequences is computed again by itself,
// and others that start meanwhile wait for them.
TEST(FailedStep, ItsSequencesBeginAgainOneAtATime) {
  Machine machine({.interval = 64});
  machine.add(tokens_of(200), 50);
  machine.add(tokens_of(100, 1000), 50);
  for (int i = 0; i < 20; ++i) machine.step();
  machine.failed_step();
  machine.expect_nothing_held();
  int64_t alone = 0;
  for (std::vector<Chunk> chunks = machine.step(); chunks.size() == 1; chunks = machine.step()) {
    ++alone;
  }
  EXPECT_GE(alone, 2);  // then both go on together
  EXPECT_EQ(machine.scheduler().running(), 2);
  machine.run();
  machine.expect_nothing_held();
}

TEST(FailedStep, ASequenceThatFailsAloneLeavesTheOthersAtWork) {
  Machine machine({.interval = 64});
  Sequence& bad = machine.add(tokens_of(200), 50);
  machine.add(tokens_of(100, 1000), 50);
  machine.step();
  machine.failed_step();
  while (machine.scheduler().schedule().front().sequence != &bad) machine.step();
  machine.scheduler().remove(bad);
  machine.run();
  machine.expect_nothing_held();
}

TEST(WithoutStates, NothingIsCutCopiedOrHeld) {
  KvSpec spec = hybrid_spec();
  spec.state = {};
  Machine machine({.spec = spec, .slots = 2, .interval = 64, .max_num_seqs = 8});
  machine.add(tokens_of(300), 2);
  EXPECT_EQ(chunk_ends(machine), (std::vector<int64_t>{300, 301}));
  EXPECT_EQ(machine.cached(tokens_of(300)), 256);
  for (int32_t i = 0; i < 5; ++i) machine.add(tokens_of(30, 1000 * i), 2);
  for (const Chunk& chunk : machine.step()) EXPECT_EQ(chunk.sequence->kv.state_slot, -1);
  EXPECT_EQ(machine.scheduler().running(), 5);  // slots limit nobody
  machine.run();
  EXPECT_EQ(machine.copies(), 0);
  machine.expect_nothing_held();
}

TEST(WithoutAttention, SequencesRunOnStatesAlone) {
  Machine machine({.spec = hybrid_spec({}), .pages = 1, .interval = 128});
  EXPECT_EQ(machine.cached(tokens_of(300)), 0);
  EXPECT_EQ(machine.cached(tokens_of(200)), 128);
  EXPECT_EQ(machine.cached(tokens_of(300)), 256);
  machine.expect_nothing_held();
}

// Prompts over a small alphabet, so that prefixes meet; too few pages, few slots, cancels and
// failed steps: every step goes on from its own history (Machine looks), and nothing stays behind.
TEST(RecurrentState, RandomLifeStaysExactAndReturnsEverySlot) {
  for (const int64_t slots : {4, 7, 30}) {
    std::mt19937 random(static_cast<uint32_t>(slots));
    const auto below = [&](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
    };
    Machine machine({.spec = hybrid_spec({0, 100}),
                     .pages = 40,
                     .slots = slots,
                     .interval = 128,
                     .step_tokens = 150});
    std::vector<Sequence*> all;
    for (int round = 0; round < 3000; ++round) {
      if (below(20) == 0 && machine.scheduler().waiting() < 8) {
        std::vector<int32_t> prompt;
        for (int64_t b = 1 + below(5); b > 0; --b) {
          prompt.insert(prompt.end(), 64, static_cast<int32_t>(below(2)));
        }
        prompt.resize(prompt.size() - static_cast<size_t>(below(63)));
        all.push_back(&machine.add(std::move(prompt), 1 + below(200), below(9) == 0 ? "salt" : ""));
      }
      if (below(100) == 0 && !all.empty()) {
        machine.scheduler().remove(*all[static_cast<size_t>(below(std::ssize(all)))]);
      }
      if (below(200) == 0) machine.failed_step();
      machine.step();
      ASSERT_LE(machine.kv().used_slots(), machine.scheduler().running());
    }
    machine.run();
    machine.expect_nothing_held();
    EXPECT_GT(machine.scheduler().prefix_hits(), 0);
    EXPECT_GT(machine.scheduler().preemptions(), 0);
    EXPECT_GT(machine.copies(), 0);
  }
}

}  // namespace
}  // namespace rota
