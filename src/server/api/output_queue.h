// The engine's news, brought from its thread to a coroutine of the server's: one queue for all the
// engine requests of one API request.
//
//   auto queue = OutputQueue::make(io);
//   engine.submit(request, [queue](const RequestOutput& out) { queue->push(0, out); });
//   while (auto item = co_await queue->next()) ...
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "engine/request.h"

namespace rota {

class OutputQueue : public std::enable_shared_from_this<OutputQueue> {
 public:
  struct Item {
    size_t choice = 0;
    RequestOutput output;
  };

  static std::shared_ptr<OutputQueue> make(boost::asio::io_context& io);

  void push(size_t choice, const RequestOutput& output);  // any thread
  void close();                                           // the server's thread: next() ends

  // The server's thread. nullopt: closed.
  boost::asio::awaitable<std::optional<Item>> next();

 private:
  explicit OutputQueue(boost::asio::io_context& io) : io_(io), wake_(io) {}
  void wake();

  boost::asio::io_context& io_;
  boost::asio::steady_timer wake_;  // never expires; cancelled to wake next()
  std::mutex mutex_;
  std::deque<Item> items_;
  bool closed_ = false;
};

}  // namespace rota
