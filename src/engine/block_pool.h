// Pages of the KV cache, or slots of its states: which are used, which are free, which are unused
// but remembered.
//
// Contract: a page is free (no user, no content worth keeping), used (a count of users >= 1), or
// idle (no user, but kept: the prefix cache may hand it out again). take() prefers free pages and
// then evicts the idle page that has been idle longest, telling the owner of its content first.
// Nothing allocates after construction.
//
//   BlockPool pool(pages, [&](int32_t page) { tree.detach(page); });
//   int32_t page = pool.take();     // count 1, or -1: all pages are used
//   pool.release(page);             // idle if pool.keep(page) was called, else free
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace rota {

class BlockPool {
 public:
  using EvictFn = std::function<void(int32_t page)>;

  BlockPool(int64_t pages, EvictFn on_evict);

  int64_t pages() const { return static_cast<int64_t>(states_.size()); }
  int64_t used() const { return used_; }
  int64_t available() const { return pages() - used_; }  // free and idle
  int64_t idle() const { return idle_; }

  int32_t take();
  void add_user(int32_t page);  // of a used or an idle page
  void release(int32_t page);
  // Its content is worth keeping when the last user has gone. Undone by eviction.
  void keep(int32_t page);
  // Its content is worth nothing any more: an idle page becomes free, without on_evict.
  void forget(int32_t page);

 private:
  struct PageState {
    int32_t users = 0;
    bool kept = false;
    int32_t older = -1;  // neighbours in the list of idle pages
    int32_t newer = -1;
  };

  PageState& state(int32_t page) { return states_[static_cast<size_t>(page)]; }
  void append_idle(int32_t page);
  void unlink_idle(int32_t page);

  std::vector<PageState> states_;
  std::vector<int32_t> free_;  // a stack: pages that were touched before are taken first
  int32_t oldest_ = -1;
  int32_t newest_ = -1;
  int64_t used_ = 0;
  int64_t idle_ = 0;
  EvictFn on_evict_;
};

}  // namespace rota
