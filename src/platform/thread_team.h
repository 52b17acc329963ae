// A fixed team of threads that runs one loop at a time: the explicit threading context of a step.
//
// The caller is member 0. Workers spin for a short while after a loop, then park, so that loops
// that follow one another cost a barrier and an idle engine costs nothing. Items are handed out by
// an atomic counter: which member runs an item is unspecified, so results must not depend on it.
//
//   ThreadTeam team({.threads = 2, .pin = true});
//   team.parallel_for(items, [&](int64_t item, int member) { ... });
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

namespace rota {

// The calling thread runs from now on only where no other wants its core.
void run_this_thread_when_idle();

struct ThreadTeamOptions {
  int threads = 0;  // 0: one for each physical core this process may use
  bool pin = true;  // each member to its own core
  // Teams of other processes share the cores: this one's are those from first_core on. -1: it is
  // alone.
  int first_core = -1;
  bool crowded =
      false;  // there are more members of all teams than cores: they do not spin, nor are pinned
};

class ThreadTeam {
 public:
  explicit ThreadTeam(ThreadTeamOptions options);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const;
  const std::vector<int>& cpus() const;  // of each member, the caller first; empty: not pinned

  // Calls fn(item, member) for item in [0, items), member in [0, size()); returns when all are
  // done. Does not allocate. Not re-entrant. fn must not throw.
  template <typename Fn>
  void parallel_for(int64_t items, Fn&& fn) {
    using Decayed = std::remove_reference_t<Fn>;
    run(
        items,
        [](void* context, int64_t item, int member) {
          (*static_cast<Decayed*>(context))(item, member);
        },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using ItemFn = void (*)(void* context, int64_t item, int member);
  void run(int64_t items, ItemFn fn, void* context);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace rota
