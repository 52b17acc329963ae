// One HTTP/1.1 connection: reads requests one after another, hands each to the handler, watches for
// the client leaving while the handler works.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <optional>

#include "server/http/http_server.h"
#include "server/http/waiting_connections.h"

namespace rota {

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(boost::asio::ip::tcp::socket socket, const HttpOptions& options,
                 const HttpHandler& handler, WaitingConnections& waiting);
  // Until the client closes, errs, or asks for it.
  awaitable<void> serve();

  // Of a connection that waits for a request: whether any of it has come.
  bool has_bytes();
  // Frees the descriptor; serve() ends soon after.
  void close_at_once() { stream_.close(); }

 private:
  class Exchange;
  friend class Exchange;

  // The next request; nullopt: the connection is over (an error was answered where one was due).
  awaitable<std::optional<HttpRequest>> read_request();
  awaitable<void> refuse(int status, std::string message);
  awaitable<bool> write(HttpResponse response, bool keep_alive);
  void close();

  boost::beast::tcp_stream stream_;
  boost::beast::flat_buffer buffer_;
  const HttpOptions& options_;
  const HttpHandler& handler_;
  WaitingConnections& waiting_;
  bool keep_alive_ = true;
  unsigned version_ = 11;
  bool head_only_ = false;
};

}  // namespace rota
