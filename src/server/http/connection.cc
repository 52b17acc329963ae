#include "server/http/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/serializer.hpp>
#include <boost/beast/http/write.hpp>
#include <tuple>

#include "base/log.h"
#include "server/http/errors.h"

namespace rota {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

namespace {

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);

// A status line is one line of printable ASCII.
std::string one_line(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 200)) {
    if (c >= 0x20 && c < 0x7f) out.push_back(c);
  }
  return out;
}

template <typename Message>
void set_common_headers(Message& message, unsigned version, bool keep_alive,
                        const HttpHeaders& headers) {
  message.version(version);
  message.keep_alive(keep_alive);
  message.set(http::field::server, "rota");
  message.set("X-Content-Type-Options", "nosniff");
  for (const auto& [name, value] : headers) message.set(name, one_line(value));
}

}  // namespace

// While a handler works, a watcher waits for the socket to become readable: end of file means that
// the client has gone. Bytes that arrive are the next request; they stay in the socket, and the
// watch ends.
class HttpConnection::Exchange : public HttpExchange {
 public:
  explicit Exchange(std::shared_ptr<HttpConnection> connection)
      : connection_(std::move(connection)) {}

  void watch() {
    asio::co_spawn(
        connection_->stream_.get_executor(),
        [connection = connection_, shared = shared_]() -> awaitable<void> {
          auto& socket = connection->stream_.socket();
          for (;;) {
            auto [failed] = co_await socket.async_wait(tcp::socket::wait_read, kTuple);
            if (shared->over) co_return;
            char byte;
            const ssize_t got =
                failed ? 0 : ::recv(socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
            if (got > 0) {  // the next request waits: from here on only a hang-up counts
              co_await watch_for_hangup(socket, shared);
              co_return;
            }
            if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) continue;
            shared->leave();
            co_return;
          }
        },
        asio::detached);
  }

  // Nothing but the watch is under way on the socket then.
  void finish_watch() {
    shared_->over = true;
    beast::error_code ignored;
    std::ignore = connection_->stream_.socket().cancel(ignored);
  }

  awaitable<void> respond(HttpResponse response) override {
    answered_ = true;
    const bool written = co_await connection_->write(std::move(response), connection_->keep_alive_);
    if (!written) shared_->leave();
  }

  awaitable<void> begin_stream(HttpHeaders headers) override {
    answered_ = true;
    http::response<http::empty_body> head;
    head.result(http::status::ok);
    set_common_headers(head, 11, connection_->keep_alive_, headers);
    head.set(http::field::content_type, "text/event-stream; charset=utf-8");
    head.set(http::field::cache_control, "no-cache");
    head.set("X-Accel-Buffering", "no");
    chunked_ = connection_->version_ >= 11;
    if (chunked_) {
      head.chunked(true);
    } else {
      head.keep_alive(false);
      connection_->keep_alive_ = false;
    }
    http::response_serializer<http::empty_body> serializer(head);
    connection_->stream_.expires_after(connection_->options_.write_timeout);
    auto [failed, bytes] =
        co_await http::async_write_header(connection_->stream_, serializer, kTuple);
    if (failed) shared_->leave();
  }

  awaitable<bool> send_event(std::string_view event) override {
    if (shared_->gone) co_return false;
    connection_->stream_.expires_after(connection_->options_.write_timeout);
    const asio::const_buffer body(event.data(), event.size());
    // Two statements: g++ 12 miscompiles co_await inside a conditional expression.
    beast::error_code failed;
    if (chunked_) {
      std::tie(failed, std::ignore) =
          co_await asio::async_write(connection_->stream_, http::make_chunk(body), kTuple);
    } else {
      std::tie(failed, std::ignore) =
          co_await asio::async_write(connection_->stream_, body, kTuple);
    }
    if (failed) shared_->leave();
    co_return !shared_->gone;
  }

  awaitable<void> end_stream() override {
    if (shared_->gone || !chunked_) co_return;
    connection_->stream_.expires_after(connection_->options_.write_timeout);
    auto [failed, bytes] =
        co_await asio::async_write(connection_->stream_, http::make_chunk_last(), kTuple);
    if (failed) shared_->leave();
  }

  void on_client_gone(std::function<void()> callback) override {
    if (shared_->gone) {
      callback();
    } else {
      shared_->callback = std::move(callback);
    }
  }

  bool client_gone() const override { return shared_->gone; }
  bool answered() const { return answered_; }

 private:
  struct Shared;
  static awaitable<void> watch_for_hangup(tcp::socket& socket, std::shared_ptr<Shared> shared) {
    asio::steady_timer timer(socket.get_executor());
    while (!shared->over) {
      pollfd state{socket.native_handle(), POLLRDHUP, 0};
      if (::poll(&state, 1, 0) > 0) {
        shared->leave();
        co_return;
      }
      timer.expires_after(std::chrono::milliseconds(100));
      co_await timer.async_wait(kTuple);
    }
  }

  // Outlives the exchange while the watcher still runs.
  struct Shared {
    bool over = false;
    bool gone = false;
    std::function<void()> callback;
    void leave() {
      if (gone) return;
      gone = true;
      if (auto call = std::exchange(callback, nullptr)) call();
    }
  };

  std::shared_ptr<HttpConnection> connection_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  bool answered_ = false;
  bool chunked_ = false;
};

HttpConnection::HttpConnection(tcp::socket socket, const HttpOptions& options,
                               const HttpHandler& handler, WaitingConnections& waiting)
    : stream_(std::move(socket)), options_(options), handler_(handler), waiting_(waiting) {
  beast::error_code ignored;
  std::ignore = stream_.socket().set_option(tcp::no_delay(true), ignored);
}

awaitable<void> HttpConnection::serve() {
  while (keep_alive_) {
    std::optional<HttpRequest> request = co_await read_request();
    if (!request) break;
    Exchange exchange(shared_from_this());
    exchange.watch();
    bool failed = false;
    try {  // Asio reports some faults by throwing; nothing may cross into the io_context
      co_await handler_(*std::move(request), exchange);
    } catch (const std::exception& fault) {
      log::error("a request handler failed: {}", fault.what());
      failed = true;
    }
    if (failed && !exchange.answered()) {
      keep_alive_ = false;
      co_await exchange.respond(
          error_response(500, "The server failed on this request; its log says more.",
                         "server_error", {}, "server_error"));
    }
    exchange.finish_watch();
    if (failed || exchange.client_gone()) break;
  }
  close();
}

awaitable<std::optional<HttpRequest>> HttpConnection::read_request() {
  http::request_parser<http::string_body> parser;
  parser.header_limit(static_cast<uint32_t>(options_.max_header_bytes));
  parser.body_limit(static_cast<uint64_t>(options_.max_body_bytes));

  stream_.expires_after(options_.header_timeout);
  beast::error_code failed;
  {
    const WaitingConnections::Place place(waiting_, *this);
    std::tie(failed, std::ignore) =
        co_await http::async_read_header(stream_, buffer_, parser, kTuple);
  }
  if (failed == http::error::header_limit) {
    co_await refuse(431, fmt::format("The request's headers are longer than {} bytes.",
                                     options_.max_header_bytes));
    co_return std::nullopt;
  }
  if (failed == http::error::body_limit) {
    co_await refuse(
        413, fmt::format("The request's body is longer than {} bytes.", options_.max_body_bytes));
    co_return std::nullopt;
  }
  if (failed) {
    // A request that broke off or came too slowly gets no answer; one that is not HTTP gets one.
    if (failed.category() == http::make_error_code(http::error::bad_method).category() &&
        failed != http::error::end_of_stream && failed != http::error::partial_message) {
      co_await refuse(400, "This is not a well-formed HTTP/1.1 request.");
    }
    co_return std::nullopt;
  }
  const auto& head = parser.get();
  version_ = head.version();
  keep_alive_ = head.keep_alive();
  head_only_ = head.method() == http::verb::head;
  if (const auto encoding = head[http::field::content_encoding];
      !encoding.empty() && encoding != "identity") {
    co_await refuse(
        415, "Compressed request bodies are not accepted: send the body without Content-Encoding.");
    co_return std::nullopt;
  }
  if (head.count(http::field::transfer_encoding) != 0 &&
      head.count(http::field::content_length) != 0) {
    co_await refuse(400, "A request has either Content-Length or Transfer-Encoding, not both.");
    co_return std::nullopt;
  }
  if (beast::iequals(head[http::field::expect], "100-continue")) {
    http::response<http::empty_body> go_on(http::status::continue_, version_);
    auto [refused, bytes] = co_await http::async_write(stream_, go_on, kTuple);
    if (refused) co_return std::nullopt;
  }
  stream_.expires_after(options_.body_timeout);
  auto [broken, body_bytes] = co_await http::async_read(stream_, buffer_, parser, kTuple);
  if (broken == http::error::body_limit) {
    co_await refuse(
        413, fmt::format("The request's body is longer than {} bytes.", options_.max_body_bytes));
    co_return std::nullopt;
  }
  if (broken) {
    if (broken.category() == http::make_error_code(http::error::bad_method).category() &&
        broken != http::error::partial_message) {
      co_await refuse(400, "The request's body is not well-formed.");
    }
    co_return std::nullopt;
  }
  stream_.expires_never();

  http::request<http::string_body> message = parser.release();
  const std::string_view target(message.target().data(), message.target().size());
  const size_t question = target.find('?');
  std::optional<std::string> path = percent_decode(target.substr(0, question));
  if (!path || path->empty() || path->front() != '/') {
    co_await refuse(400, "The request's path is not well-formed.");
    co_return std::nullopt;
  }
  HttpRequest request;
  request.method = std::string(message.method_string());
  request.path = *std::move(path);
  if (question != std::string_view::npos) request.query = std::string(target.substr(question + 1));
  for (const auto& field : message) {
    request.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  }
  request.body = std::move(message.body());
  co_return request;
}

awaitable<void> HttpConnection::refuse(int status, std::string message) {
  keep_alive_ = false;
  HttpResponse response = error_response(status, message, "invalid_request_error");
  co_await write(std::move(response), false);
}

awaitable<bool> HttpConnection::write(HttpResponse response, bool keep_alive) {
  http::response<http::string_body> message;
  message.result(static_cast<unsigned>(response.status));
  if (!response.reason.empty()) message.reason(one_line(response.reason));
  set_common_headers(message, version_, keep_alive, response.headers);
  if (!response.content_type.empty()) message.set(http::field::content_type, response.content_type);
  message.content_length(response.body.size());
  if (!head_only_) message.body() = std::move(response.body);
  stream_.expires_after(options_.write_timeout);
  http::response_serializer<http::string_body> serializer(message);
  beast::error_code failed;
  if (head_only_) {
    std::tie(failed, std::ignore) = co_await http::async_write_header(stream_, serializer, kTuple);
  } else {
    std::tie(failed, std::ignore) = co_await http::async_write(stream_, serializer, kTuple);
  }
  stream_.expires_never();
  co_return !failed;
}

bool HttpConnection::has_bytes() {
  if (buffer_.size() > 0) return true;
  char byte = 0;
  return ::recv(stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

void HttpConnection::close() {
  beast::error_code ignored;
  std::ignore = stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  stream_.close();
}

}  // namespace rota
