#include "platform/thread_team.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/check.h"
#include "platform/clock.h"
#include "platform/memory.h"
#include "platform/topology.h"

namespace rota {
namespace {

// Loops of one step follow one another within microseconds, steps within a few hundred: spin over
// the first, park between the second.
constexpr auto kSpin = std::chrono::microseconds(100);
constexpr int kPausesBetweenClockReads = 64;
// A member that is not back after so many pauses has lost its core: give ours away as well.
constexpr int kPausesBeforeYield = 4096;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

void run_this_thread_when_idle() {
  const sched_param lowest{};
  // Refused (in a sandbox, say): it runs like any other thread, which is only less polite.
  static_cast<void>(sched_setscheduler(0, SCHED_IDLE, &lowest));
}

// `gate` is the state of the current loop: its number in the upper half, then one bit "open", then
// how many workers are inside. A worker enters only while the loop is open, the caller leaves only
// when nobody is inside: so a worker that is slow to wake costs nothing, and the loop's fields are
// never read after they changed.
struct ThreadTeam::State {
  static constexpr uint64_t kOpen = uint64_t{1} << 31;
  static constexpr uint64_t kInsideMask = kOpen - 1;
  static constexpr int kNumberShift = 32;

  alignas(kCacheLine) std::atomic<uint64_t> gate{0};
  alignas(kCacheLine) std::atomic<int64_t> next{0};
  alignas(kCacheLine) std::atomic<uint32_t> signal{0};  // parked workers wait for it to change
  std::atomic<int> parked{0};
  std::atomic<bool> stop{false};
  int64_t items = 0;
  ItemFn fn = nullptr;
  void* context = nullptr;

  std::vector<std::thread> workers;
  bool oversubscribed = false;
  bool pinned_caller = false;
  std::vector<int> cpus;
  cpu_set_t caller_mask;

  void work(int member) {
    for (;;) {
      const int64_t item = next.fetch_add(1, std::memory_order_relaxed);
      if (item >= items) return;
      fn(context, item, member);
    }
  }

  bool enter() {
    uint64_t seen = gate.load(std::memory_order_acquire);
    while ((seen & kOpen) != 0) {
      if (gate.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) return true;
    }
    return false;
  }

  // Returns when `signal` is no longer `seen`.
  void await_signal(uint32_t seen) {
    if (!oversubscribed) {
      const auto start = Clock::now();
      do {
        for (int i = 0; i < kPausesBetweenClockReads; ++i) {
          if (signal.load(std::memory_order_acquire) != seen) return;
          pause();
        }
      } while (Clock::now() - start < kSpin);
    }
    parked.fetch_add(1);
    while (signal.load() == seen) signal.wait(seen);
    parked.fetch_sub(1);
  }

  void worker_main(int member, int cpu) {
    if (cpu >= 0) pin_this_thread(cpu);
    uint32_t seen = 0;
    for (;;) {
      await_signal(seen);
      seen = signal.load(std::memory_order_acquire);
      if (stop.load()) return;
      if (enter()) {
        work(member);
        gate.fetch_sub(1, std::memory_order_release);
      }
    }
  }

  void start(int member, int cpu) {
    try {
      workers.emplace_back([this, member, cpu] { worker_main(member, cpu); });
    } catch (...) {
      end_workers();
      throw;
    }
  }

  void end_workers() {
    stop.store(true);
    wake_all();
    for (std::thread& worker : workers) worker.join();
    workers.clear();
  }

  void wake_all() {
    signal.fetch_add(1);
    if (parked.load() != 0) signal.notify_all();
  }

  void close_and_wait() {
    gate.fetch_and(~kOpen, std::memory_order_acq_rel);
    for (int spins = 0; (gate.load(std::memory_order_acquire) & kInsideMask) != 0; ++spins) {
      if (oversubscribed || spins > kPausesBeforeYield) {
        std::this_thread::yield();
      } else {
        pause();
      }
    }
  }
};

ThreadTeam::ThreadTeam(ThreadTeamOptions options) : state_(std::make_unique<State>()) {
  const UsableCpus& cpus = usable_cpus();
  const auto members =
      options.threads > 0 ? static_cast<size_t>(options.threads) : cpus.one_per_core.size();
  const bool hyper = members > cpus.one_per_core.size();
  const std::vector<int>& places = hyper ? cpus.logical : cpus.one_per_core;
  const bool alone = options.first_core < 0;
  const size_t first = alone ? 0 : static_cast<size_t>(options.first_core);
  state_->oversubscribed = options.crowded || first + members > places.size();
  const bool pin = options.pin && (members > 1 || !alone) && !state_->oversubscribed;

  if (pin) {
    const auto place = places.begin() + static_cast<std::ptrdiff_t>(first);
    state_->cpus.assign(place, place + static_cast<std::ptrdiff_t>(members));
  }
  state_->workers.reserve(members - 1);
  for (size_t member = 1; member < members; ++member) {
    const int cpu = pin ? state_->cpus[member] : -1;
    state_->start(static_cast<int>(member), cpu);
  }
  if (pin && sched_getaffinity(0, sizeof(cpu_set_t), &state_->caller_mask) == 0) {
    state_->pinned_caller = pin_this_thread(state_->cpus[0]);
  }
}

ThreadTeam::~ThreadTeam() {
  state_->end_workers();
  if (state_->pinned_caller) sched_setaffinity(0, sizeof(cpu_set_t), &state_->caller_mask);
}

const std::vector<int>& ThreadTeam::cpus() const { return state_->cpus; }

int ThreadTeam::size() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadTeam::run(int64_t items, ItemFn fn, void* context) {
  if (items <= 1 || state_->workers.empty()) {
    for (int64_t item = 0; item < items; ++item) fn(context, item, 0);
    return;
  }
  State& state = *state_;
  ROTA_DCHECK((state.gate.load() & State::kOpen) == 0, "a team runs one loop at a time");
  state.items = items;
  state.fn = fn;
  state.context = context;
  state.next.store(0, std::memory_order_relaxed);
  const uint64_t number = (state.gate.load() >> State::kNumberShift) + 1;
  state.gate.store((number << State::kNumberShift) | State::kOpen, std::memory_order_release);
  state.wake_all();
  state.work(0);
  state.close_and_wait();
}

}  // namespace rota
