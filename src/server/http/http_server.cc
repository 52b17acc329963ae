#include "server/http/http_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cctype>
#include <tuple>

#include "base/log.h"
#include "server/http/accept_trouble.h"
#include "server/http/connection.h"

namespace rota {

namespace asio = boost::asio;
using asio::ip::tcp;

struct HttpServer::State : std::enable_shared_from_this<HttpServer::State> {
  State(asio::io_context& context, HttpOptions wanted, HttpHandler handle)
      : io(context), acceptor(context), options(std::move(wanted)), handler(std::move(handle)) {}

  asio::io_context& io;
  tcp::acceptor acceptor;
  HttpOptions options;
  HttpHandler handler;
  WaitingConnections waiting;
  int64_t connections = 0;
};

namespace {

awaitable<void> sleep(asio::io_context& io, std::chrono::milliseconds time) {
  asio::steady_timer timer(io, time);
  co_await timer.async_wait(asio::as_tuple(asio::use_awaitable));
}

bool out_of_descriptors(const boost::system::error_code& failed) {
  return failed == boost::system::errc::too_many_files_open ||
         failed == boost::system::errc::too_many_files_open_in_system;
}

}  // namespace

awaitable<void> HttpServer::accept_all(std::shared_ptr<State> state) {
  AcceptTrouble trouble;
  while (state->acceptor.is_open()) {
    auto [failed, socket] =
        co_await state->acceptor.async_accept(asio::as_tuple(asio::use_awaitable));
    if (failed == asio::error::operation_aborted) co_return;
    if (failed) {
      const bool made_room = out_of_descriptors(failed) && state->waiting.evict();
      trouble.report(failed.message(), made_room);
      if (!made_room) co_await sleep(state->io, trouble.pause());
      continue;
    }
    trouble.ease();
    if (state->connections >= state->options.max_connections) {
      const bool made_room = state->waiting.evict();
      trouble.report(fmt::format("all {} places are taken", state->options.max_connections),
                     made_room);
      if (!made_room) continue;  // closes it
    }
    serve(state, std::make_shared<HttpConnection>(std::move(socket), state->options, state->handler,
                                                  state->waiting));
  }
}

void HttpServer::serve(const std::shared_ptr<State>& state,
                       std::shared_ptr<HttpConnection> connection) {
  ++state->connections;
  asio::co_spawn(
      state->io,
      [state, connection = std::move(connection)]() -> awaitable<void> {
        co_await connection->serve();
        --state->connections;
      },
      asio::detached);
}

HttpServer::HttpServer(asio::io_context& io, HttpOptions options, HttpHandler handler)
    : state_(std::make_shared<State>(io, std::move(options), std::move(handler))) {}

HttpServer::~HttpServer() { stop_accepting(); }

uint16_t HttpServer::port() const {
  boost::system::error_code ignored;
  return state_->acceptor.local_endpoint(ignored).port();
}

bool HttpServer::is_loopback() const {
  boost::system::error_code ignored;
  return state_->acceptor.local_endpoint(ignored).address().is_loopback();
}

int64_t HttpServer::open_connections() const { return state_->connections; }

void HttpServer::stop_accepting() {
  boost::system::error_code ignored;
  std::ignore = state_->acceptor.close(ignored);
}

Status HttpServer::listen() {
  const HttpOptions& options = state_->options;
  boost::system::error_code fault;
  tcp::resolver resolver(state_->io);
  const auto found =
      resolver.resolve(options.host, std::to_string(options.port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, fault);
  if (fault || found.empty()) {
    return invalid_argument(
        "--host {}: {}; use an address of this machine such as 127.0.0.1 or 0.0.0.0", options.host,
        fault.message());
  }
  const tcp::endpoint endpoint = *found.begin();
  tcp::acceptor& acceptor = state_->acceptor;
  const bool failed = acceptor.open(endpoint.protocol(), fault) ||
                      acceptor.set_option(tcp::acceptor::reuse_address(true), fault) ||
                      acceptor.bind(endpoint, fault) ||
                      acceptor.listen(asio::socket_base::max_listen_connections, fault);
  if (failed) {
    acceptor.close();
    return error(StatusCode::kIo, "cannot listen on {} port {}: {}; choose another with --port",
                 options.host, options.port, fault.message());
  }
  asio::co_spawn(state_->io, accept_all(state_), asio::detached);
  return {};
}

std::optional<std::string> percent_decode(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size()) return std::nullopt;
      const int high = digit(text[i + 1]);
      const int low = digit(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (c == '\0') return std::nullopt;
    out.push_back(c);
  }
  return out;
}

std::string_view HttpRequest::header(std::string_view name) const {
  const auto same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) ==
           std::tolower(static_cast<unsigned char>(b));
  };
  for (const auto& [key, value] : headers) {
    if (std::equal(key.begin(), key.end(), name.begin(), name.end(), same)) return value;
  }
  return {};
}

}  // namespace rota
