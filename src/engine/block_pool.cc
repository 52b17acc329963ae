#include "engine/block_pool.h"

#include <utility>

#include "base/check.h"

namespace rota {

BlockPool::BlockPool(int64_t pages, EvictFn on_evict)
    : states_(static_cast<size_t>(pages)), on_evict_(std::move(on_evict)) {
  free_.reserve(states_.size());
  for (int64_t page = pages - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
}

int32_t BlockPool::take() {
  int32_t page = -1;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else if (oldest_ >= 0) {
    page = oldest_;
    unlink_idle(page);
    on_evict_(page);
    state(page).kept = false;
  } else {
    return -1;
  }
  state(page).users = 1;
  ++used_;
  return page;
}

void BlockPool::add_user(int32_t page) {
  PageState& it = state(page);
  ROTA_DCHECK(it.users > 0 || it.kept, "a free page has no content to share");
  if (it.users == 0) {
    unlink_idle(page);
    ++used_;
  }
  ++it.users;
}

void BlockPool::release(int32_t page) {
  PageState& it = state(page);
  ROTA_CHECK(it.users > 0, "a page was released more often than taken");
  if (--it.users > 0) return;
  --used_;
  if (it.kept) {
    append_idle(page);
  } else {
    free_.push_back(page);
  }
}

void BlockPool::keep(int32_t page) {
  ROTA_DCHECK(state(page).users > 0, "only a used page has content");
  state(page).kept = true;
}

void BlockPool::forget(int32_t page) {
  PageState& it = state(page);
  if (!it.kept) return;
  it.kept = false;
  if (it.users > 0) return;
  unlink_idle(page);
  free_.push_back(page);
}

void BlockPool::append_idle(int32_t page) {
  PageState& it = state(page);
  it.older = newest_;
  it.newer = -1;
  if (newest_ >= 0) {
    state(newest_).newer = page;
  } else {
    oldest_ = page;
  }
  newest_ = page;
  ++idle_;
}

void BlockPool::unlink_idle(int32_t page) {
  PageState& it = state(page);
  if (it.older >= 0) {
    state(it.older).newer = it.newer;
  } else {
    oldest_ = it.newer;
  }
  if (it.newer >= 0) {
    state(it.newer).older = it.older;
  } else {
    newest_ = it.older;
  }
  it.older = it.newer = -1;
  --idle_;
}

}  // namespace rota
