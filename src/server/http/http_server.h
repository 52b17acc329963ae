// HTTP/1.1 for one process on one thread: each connection is a coroutine, so thousands of open
// streams cost memory, not threads. Knows nothing of models: a Handler gets a whole request and
// answers it through the exchange, at once or as a stream of server-sent events.
//
//   HttpServer server(io, options, [](HttpRequest request, HttpExchange& exchange) ->
//   awaitable<void> {
//     co_await exchange.respond(json_response(200, body));
//   });
//   ROTA_RETURN_IF_ERROR(server.listen());
//   io.run();
//
// What is malformed at the level of HTTP (sizes, encodings, framing) is answered here and never
// reaches the handler.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace rota {

template <typename T>
using awaitable = boost::asio::awaitable<T>;

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string path;   // percent-decoded; the decision on access is taken on this
  std::string query;  // as sent, without the '?'
  HttpHeaders headers;
  std::string body;

  // Value of the first header of that name (any case), or empty.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  HttpHeaders headers = {};
  std::string reason = {};  // empty: the status' own phrase. Control characters are dropped.
};

// The answer to one request. Either respond() once, or begin_stream(), send_event()...,
// end_stream().
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual awaitable<void> respond(HttpResponse response) = 0;
  virtual awaitable<void> begin_stream(HttpHeaders headers) = 0;
  // One chunk of the stream, already framed ("data: ...\n\n"). False: the client is gone.
  virtual awaitable<bool> send_event(std::string_view event) = 0;
  virtual awaitable<void> end_stream() = 0;
  // Called at most once, from the server's thread, when the client leaves before the answer is
  // whole.
  virtual void on_client_gone(std::function<void()> callback) = 0;
  virtual bool client_gone() const = 0;
};

using HttpHandler = std::function<awaitable<void>(HttpRequest request, HttpExchange& exchange)>;

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: any free one
  int64_t max_header_bytes = 64 << 10;
  int64_t max_body_bytes = 64 << 20;
  std::chrono::seconds header_timeout{30};  // also for an idle kept-alive connection
  std::chrono::seconds body_timeout{60};
  std::chrono::seconds write_timeout{60};  // a reader that takes nothing for that long is gone
  int64_t max_connections = 8192;
};

class HttpConnection;

class HttpServer {
 public:
  HttpServer(boost::asio::io_context& io, HttpOptions options, HttpHandler handler);
  ~HttpServer();

  Status listen();
  uint16_t port() const;     // after listen()
  bool is_loopback() const;  // after listen(): only this machine can connect
  void stop_accepting();
  int64_t open_connections() const;

 private:
  struct State;
  static awaitable<void> accept_all(std::shared_ptr<State> state);
  static void serve(const std::shared_ptr<State>& state,
                    std::shared_ptr<HttpConnection> connection);

  std::shared_ptr<State> state_;
};

// "%2F" and the like; nullopt for a malformed escape or a NUL.
std::optional<std::string> percent_decode(std::string_view text);

}  // namespace rota
