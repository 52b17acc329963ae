// Work that takes long leaves the io_context's thread: streams and health do not wait for it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <optional>
#include <type_traits>
#include <utility>

namespace rota {

// Runs `work` on the pool and comes back with what it returned. What is large is made and dropped
// inside `work`: a JSON of a million numbers takes as long to destroy as to write.
template <typename Work>
boost::asio::awaitable<std::invoke_result_t<Work>> offload(boost::asio::thread_pool& pool,
                                                           Work work) {
  std::optional<std::invoke_result_t<Work>> out;
  co_await boost::asio::co_spawn(
      pool,
      [&]() -> boost::asio::awaitable<void> {
        out.emplace(work());
        co_return;
      },
      boost::asio::use_awaitable);
  co_return *std::move(out);
}

}  // namespace rota
