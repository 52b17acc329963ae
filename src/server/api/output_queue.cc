#include "server/api/output_queue.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace rota {

namespace asio = boost::asio;

std::shared_ptr<OutputQueue> OutputQueue::make(asio::io_context& io) {
  return std::shared_ptr<OutputQueue>(new OutputQueue(io));
}

void OutputQueue::push(size_t choice, const RequestOutput& output) {
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    was_empty = items_.empty();
    items_.push_back({choice, output});
  }
  // A queue that already held something has woken its reader before.
  if (was_empty) asio::post(io_, [self = shared_from_this()] { self->wake(); });
}

void OutputQueue::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  wake();
}

void OutputQueue::wake() { wake_.cancel(); }

asio::awaitable<std::optional<OutputQueue::Item>> OutputQueue::next() {
  const auto self = shared_from_this();
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) co_return std::nullopt;
      if (!items_.empty()) {
        Item item = std::move(items_.front());
        items_.pop_front();
        co_return item;
      }
    }
    // wake() runs on this thread too, so nothing is missed between the look and the wait.
    wake_.expires_at(asio::steady_timer::time_point::max());
    co_await wake_.async_wait(asio::as_tuple(asio::use_awaitable));
  }
}

}  // namespace rota
