#include "server/http/http_server.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "server/http/accept_trouble.h"

namespace rota {
namespace {

// A server on its own thread that answers every request with "ok".
class RunningServer {
 public:
  explicit RunningServer(int64_t max_connections)
      : server_(io_, {.port = 0, .max_connections = max_connections},
                [](HttpRequest, HttpExchange& exchange) -> awaitable<void> {
                  HttpResponse ok;  // g++ 12 loses an aggregate that is made inside co_await
                  ok.body = "ok";
                  co_await exchange.respond(std::move(ok));
                }) {
    EXPECT_TRUE(server_.listen().ok());
    thread_ = std::thread([this] { io_.run(); });
  }
  ~RunningServer() {
    io_.stop();
    thread_.join();
  }
  RunningServer(const RunningServer&) = delete;
  RunningServer& operator=(const RunningServer&) = delete;
  uint16_t port() const { return server_.port(); }

 private:
  boost::asio::io_context io_{1};
  HttpServer server_;
  std::thread thread_;
};

class Client {
 public:
  Client() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {}
  ~Client() { ::close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connect(uint16_t port) const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  // What a request brings; empty: the connection was closed.
  std::string ask() const {
    constexpr std::string_view kRequest = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    if (::send(socket_, kRequest.data(), kRequest.size(), MSG_NOSIGNAL) < 0) return {};
    std::string answer;
    char chunk[512];
    while (answer.find("\r\n\r\nok") == std::string::npos) {
      const ssize_t got = ::recv(socket_, chunk, sizeof chunk, 0);
      if (got <= 0) return {};
      answer.append(chunk, static_cast<size_t>(got));
    }
    return answer;
  }

 private:
  int socket_;
};

int64_t open_descriptors() {
  int64_t count = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

class DescriptorLimit {
 public:
  explicit DescriptorLimit(int64_t limit) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit lowered = before_;
    lowered.rlim_cur = static_cast<rlim_t>(limit);
    ::setrlimit(RLIMIT_NOFILE, &lowered);
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

size_t count(std::string_view text, std::string_view part) {
  size_t times = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
    ++times;
  }
  return times;
}

// Every client asks once and stays, idle; the last of them asks again.
void expect_all_are_served(uint16_t port, const std::vector<Client>& clients) {
  for (const Client& client : clients) {
    ASSERT_TRUE(client.connect(port));
    EXPECT_NE(client.ask(), "");
  }
  EXPECT_NE(clients.back().ask(), "");
  EXPECT_EQ(clients.front().ask(), "");  // idle for longest: it made room
}

TEST(OutOfPlaces, IdleConnectionsMakeRoomWhereDescriptorsAreShort) {
  const std::vector<Client> clients(60);
  const RunningServer server(/*max_connections=*/1000);
  // UBSan looks at a type that it has not met through a pipe, and could open none then.
  AcceptTrouble().report("none yet", /*made_room=*/true);
  ::testing::internal::CaptureStderr();
  {
    const DescriptorLimit limit(open_descriptors() + 5);
    expect_all_are_served(server.port(), clients);
  }
  EXPECT_EQ(count(::testing::internal::GetCapturedStderr(), "new connections"), 1u);
}

TEST(OutOfPlaces, IdleConnectionsMakeRoomWhereThereAreTooMany) {
  const std::vector<Client> clients(60);
  const RunningServer server(/*max_connections=*/5);
  ::testing::internal::CaptureStderr();
  expect_all_are_served(server.port(), clients);
  EXPECT_EQ(count(::testing::internal::GetCapturedStderr(), "new connections"), 1u);
}

TEST(HttpServer, KnowsWhetherOthersCanReachIt) {
  for (const auto& [host, loopback] : {std::pair("127.0.0.1", true), {"0.0.0.0", false}}) {
    boost::asio::io_context io(1);
    HttpServer server(io, {.host = host, .port = 0}, {});
    ASSERT_TRUE(server.listen().ok());
    EXPECT_EQ(server.is_loopback(), loopback) << host;
  }
}

}  // namespace
}  // namespace rota
