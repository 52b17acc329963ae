#include "engine/engine_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/outbox.h"
#include "engine/wire.h"

namespace rota {
namespace {

constexpr std::chrono::milliseconds kHeartbeatInterval(500);

// The socket. Any thread may send; one reads.
class Connection {
 public:
  explicit Connection(int fd) : fd_(fd) {}
  ~Connection() { ::close(fd_); }

  void send(const wire::Message& message) {
    const std::string frame = wire::encode(message);
    const std::lock_guard lock(mutex_);
    for (size_t sent = 0; sent < frame.size();) {
      const ssize_t n = ::send(fd_, frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;  // the front has gone: the reader sees it too
      sent += static_cast<size_t>(n);
    }
  }

  // Nothing: the front has closed the socket.
  Result<std::optional<wire::Message>> receive() {
    for (;;) {
      ROTA_ASSIGN_OR_RETURN(std::optional<wire::Message> message, reader_.next());
      if (message) return message;
      std::string bytes(size_t{1} << 16, '\0');
      const ssize_t n = ::recv(fd_, bytes.data(), bytes.size(), 0);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return std::optional<wire::Message>();
      reader_.append(std::string_view(bytes).substr(0, static_cast<size_t>(n)));
    }
  }

 private:
  int fd_;
  std::mutex mutex_;
  wire::FrameReader reader_;
};

// Tells the front twice a second that this process is there, and how the engine is doing.
class Heart {
 public:
  explicit Heart(Connection& connection)
      : connection_(connection), thread_([this](const std::stop_token& stop) { beat(stop); }) {}

  void watch(const InProcessEngine* engine) {
    const std::lock_guard lock(mutex_);
    engine_ = engine;
  }
  // News that should not wait: the engine has become idle.
  void beat_now() {
    {
      const std::lock_guard lock(mutex_);
      now_ = true;
    }
    wake_.notify_one();
  }

 private:
  void beat(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      wire::Heartbeat heartbeat;
      {
        std::unique_lock lock(mutex_);
        wake_.wait_for(lock, stop, kHeartbeatInterval, [this] { return now_; });
        now_ = false;
        if (engine_ != nullptr) {
          heartbeat.seconds_since_step = engine_->seconds_since_heartbeat();
          heartbeat.stats = engine_->stats();
        }
      }
      connection_.send(heartbeat);
    }
  }

  Connection& connection_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  bool now_ = false;
  const InProcessEngine* engine_ = nullptr;
  std::jthread thread_;  // last: it uses the others
};

void refuse(Connection& connection, std::string id, const Status& status) {
  RequestOutput output;
  output.id = std::move(id);
  output.finish_reason = FinishReason::kError;
  output.status = status;
  connection.send(wire::Outputs{{std::move(output)}});
}

Result<EngineOptions> receive_options(Connection& connection) {
  ROTA_ASSIGN_OR_RETURN(std::optional<wire::Message> message, connection.receive());
  if (!message || !std::holds_alternative<wire::Start>(*message)) {
    return error(StatusCode::kDataLoss, "engine protocol: expected a start message");
  }
  const std::string& text = std::get<wire::Start>(*message).options;
  return engine_options_from_json(nlohmann::json::parse(text, nullptr, false));
}

// Serves until the front closes the socket.
Status serve(Connection& connection, InProcessEngine& engine, Outbox& outbox) {
  for (;;) {
    ROTA_ASSIGN_OR_RETURN(std::optional<wire::Message> message, connection.receive());
    if (!message) return {};
    if (auto* submit = std::get_if<wire::Submit>(&*message)) {
      std::string id = submit->request.id;
      const Status status = engine.submit(std::move(submit->request),
                                          [&](const RequestOutput& out) { outbox.add(out); });
      if (!status.ok()) refuse(connection, std::move(id), status);
    } else if (const auto* cancel = std::get_if<wire::Cancel>(&*message)) {
      engine.cancel(cancel->id);
    } else {
      return error(StatusCode::kDataLoss, "engine protocol: message type {} is not for an engine",
                   message->index());
    }
  }
}

int protocol_failure(const Status& status) {
  log::error("{}", status.message());
  return kEngineProtocolExitCode;
}

}  // namespace

int serve_front(int fd, const StartEngineFn& start) {
  std::signal(SIGPIPE, SIG_IGN);
  Connection connection(fd);
  Heart heart(connection);
  const Result<EngineOptions> options = receive_options(connection);
  if (!options.ok()) return protocol_failure(options.status());
  Outbox outbox([&](const wire::Message& message) { connection.send(message); });
  Result<std::unique_ptr<InProcessEngine>> engine = start(*options);
  if (!engine.ok() && engine.status().code() == StatusCode::kUnavailable) {
    log::error("{}", engine.status().message());
    return kEngineRankLostExitCode;
  }
  if (!engine.ok()) {
    connection.send(wire::Failed{engine.status()});
    return kEngineLoadFailedExitCode;
  }
  InProcessEngine& running = **engine;
  running.set_step_end([&] {
    outbox.flush();
    if (running.stats().running == 0) heart.beat_now();
  });
  connection.send(wire::Hello{running.info().value()});
  heart.watch(&running);
  const Status status = serve(connection, running, outbox);
  heart.watch(nullptr);
  return status.ok() ? 0 : protocol_failure(status);
}

int run_engine_worker(int fd) {
  // Those of a terminal or a service manager reach the whole group: the front decides what they
  // mean.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, SIG_IGN);
  return serve_front(fd,
                     [](const EngineOptions& options) { return InProcessEngine::start(options); });
}

}  // namespace rota
