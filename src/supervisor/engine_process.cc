#include "supervisor/engine_process.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/log.h"
#include "engine/engine_stats.h"
#include "engine/wire.h"
#include "platform/clock.h"
#include "supervisor/child_process.h"

namespace rota {
namespace {

constexpr double kGraceSeconds = 2;     // for a process that was asked to end
constexpr double kHealthySeconds = 60;  // after so long a failure is the first one again
constexpr int kPollMilliseconds = 250;

// A request as its client knows it. On the wire it has an id that is never used twice, so that late
// outputs of a cancelled request cannot reach one that took its name.
struct Outstanding {
  std::string client_id;
  EngineClient::OutputFn on_output;
};

// A message on its way to the process.
struct Unsent {
  std::string frame;
  std::string submits;  // the id on the wire of the request that it brings; else empty
};

std::string_view describe(EngineState state) {
  switch (state) {
    case EngineState::kLoading:
      return "the model is being loaded";
    case EngineState::kReady:
      return "the engine is ready";
    case EngineState::kRestarting:
      return "the engine is being started again";
    case EngineState::kDraining:
      return "the server is shutting down";
    case EngineState::kFailed:
      return "the engine has failed";
  }
  return "";
}

}  // namespace

class SocketEngineClient::Impl {
 public:
  explicit Impl(EngineProcessOptions options, int wake_fd)
      : options_(std::move(options)), wake_fd_(wake_fd), thread_([this] { run(); }) {}

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake();
    changed_.notify_all();
    thread_.join();
    ::close(wake_fd_);
  }

  EngineState state() const {
    const std::lock_guard lock(mutex_);
    return draining_ && state_ != EngineState::kFailed ? EngineState::kDraining : state_;
  }
  double seconds_since_heartbeat() const {
    const std::lock_guard lock(mutex_);
    return seconds_since(heard_at_) + seconds_since_step_;
  }
  Result<EngineInfo> info() const {
    const std::lock_guard lock(mutex_);
    if (state_ == EngineState::kFailed || !info_) return unavailable();
    return *info_;
  }
  EngineStats stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  pid_t pid() const { return pid_; }
  int64_t restarts() const { return restarts_; }
  int64_t unsent_bytes() const;

  Status submit(EngineRequest request, OutputFn on_output);
  void cancel(std::string_view id);
  Status wait_until_ready(double seconds) const;
  bool drain(double seconds);

 private:
  // The thread that starts and serves the process.
  void run();
  std::string run_once();
  std::string serve(ChildProcess& child);
  bool exchange(int socket, std::string& problem);
  bool read_messages(int socket, std::string& problem);
  bool write_messages(int socket, std::string& problem);
  std::string overdue() const;
  bool pause_before_restart(int failures);

  void handle(wire::Message& message);
  void handle(wire::Hello& hello);
  void handle(wire::Failed& failed);
  void handle(wire::Outputs& outputs);
  void handle(wire::Heartbeat& heartbeat);
  void deliver(RequestOutput& output);
  void fail_outstanding(const Status& status);

  Status unavailable() const;  // under the lock: why requests are not served now
  void set_state(EngineState state);
  // Under the lock.
  void queue_message(const wire::Message& message, std::string submits = {});
  void take_back(const std::string& wire_id);
  void forget_unsent() {
    outgoing_.clear();
    sent_of_first_ = 0;
  }
  void wake() const {
    const uint64_t one = 1;
    static_cast<void>(!::write(wake_fd_, &one, sizeof one));
  }

  const EngineProcessOptions options_;
  const int wake_fd_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;  // state_, outstanding_, delivering_ or stopping_
  EngineState state_ = EngineState::kLoading;
  bool stopping_ = false;
  bool draining_ = false;
  bool load_failed_ = false;
  std::string last_failure_;
  std::optional<EngineInfo> info_;
  EngineStats stats_ = empty_stats();
  Clock::time_point heard_at_ = Clock::now();
  double seconds_since_step_ = 0;
  std::map<std::string, std::shared_ptr<Outstanding>> outstanding_;  // by id on the wire
  std::map<std::string, std::string, std::less<>> wire_ids_;         // by the client's id
  bool delivering_ = false;  // an output function is running
  uint64_t submitted_ = 0;
  std::deque<Unsent> outgoing_;
  size_t sent_of_first_ = 0;  // bytes of outgoing_.front() that the process has

  std::atomic<pid_t> pid_ = -1;
  std::atomic<int64_t> restarts_ = 0;
  wire::FrameReader reader_;
  Clock::time_point ready_at_;
  std::thread thread_;  // last: it uses the others
};

Status SocketEngineClient::Impl::unavailable() const {
  const EngineState state =
      draining_ && state_ != EngineState::kFailed ? EngineState::kDraining : state_;
  if (state == EngineState::kFailed) {
    return error(StatusCode::kUnavailable, "{}: {}", describe(state), last_failure_);
  }
  return error(StatusCode::kUnavailable, "{}; try again later", describe(state));
}

void SocketEngineClient::Impl::set_state(EngineState state) {
  const std::lock_guard lock(mutex_);
  state_ = state;
  changed_.notify_all();
}

void SocketEngineClient::Impl::queue_message(const wire::Message& message, std::string submits) {
  outgoing_.push_back({wire::encode(message), std::move(submits)});
}

// A request of which the process has seen nothing is dropped, so that clients who ask and leave while
// it takes no messages cost no memory; any other is cancelled there.
void SocketEngineClient::Impl::take_back(const std::string& wire_id) {
  const size_t begun = sent_of_first_ > 0 ? 1 : 0;
  const auto unsent =
      std::find_if(outgoing_.begin() + static_cast<std::ptrdiff_t>(begun), outgoing_.end(),
                   [&](const Unsent& message) { return message.submits == wire_id; });
  if (unsent != outgoing_.end()) {
    outgoing_.erase(unsent);
  } else {
    queue_message(wire::Cancel{wire_id});
  }
}

int64_t SocketEngineClient::Impl::unsent_bytes() const {
  const std::lock_guard lock(mutex_);
  size_t sum = 0;
  for (const Unsent& message : outgoing_) sum += message.frame.size();
  return static_cast<int64_t>(sum - sent_of_first_);
}

// --- Callers' threads. ---

Status SocketEngineClient::Impl::submit(EngineRequest request, OutputFn on_output) {
  {
    const std::lock_guard lock(mutex_);
    if (draining_ || stopping_ || state_ != EngineState::kReady) return unavailable();
    ROTA_RETURN_IF_ERROR(check_request(request, *info_));
    ROTA_RETURN_IF_ERROR(check_queue(static_cast<int64_t>(outstanding_.size()), *info_));
    if (wire_ids_.contains(request.id)) {
      return invalid_argument("request id \"{}\" is in use by a running request", request.id);
    }
    const std::string wire_id = fmt::format("{}#{}", request.id, submitted_++);
    outstanding_[wire_id] = std::make_shared<Outstanding>(
        Outstanding{.client_id = request.id, .on_output = std::move(on_output)});
    wire_ids_[request.id] = wire_id;
    request.id = wire_id;
    queue_message(wire::Submit{std::move(request)}, wire_id);
  }
  wake();
  return {};
}

void SocketEngineClient::Impl::cancel(std::string_view id) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = wire_ids_.find(id);
    if (found == wire_ids_.end()) return;
    take_back(found->second);
    outstanding_.erase(found->second);
    wire_ids_.erase(found);
    changed_.notify_all();
  }
  wake();
}

Status SocketEngineClient::Impl::wait_until_ready(double seconds) const {
  std::unique_lock lock(mutex_);
  const auto settled = [&] {
    return state_ == EngineState::kReady || state_ == EngineState::kFailed;
  };
  changed_.wait_for(lock, std::chrono::duration<double>(seconds), settled);
  return state_ == EngineState::kReady ? Status() : unavailable();
}

bool SocketEngineClient::Impl::drain(double seconds) {
  bool all_done = false;
  {
    std::unique_lock lock(mutex_);
    draining_ = true;
    all_done = changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                                 [&] { return outstanding_.empty() && !delivering_; });
  }
  fail_outstanding(error(StatusCode::kUnavailable, "the server is shutting down"));
  return all_done;
}

// --- The thread of the process. ---

void SocketEngineClient::Impl::run() {
  int failures = 0;
  for (;;) {
    ready_at_ = {};
    const std::string failure = run_once();
    pid_ = -1;
    const bool was_ready = ready_at_ != Clock::time_point{};
    bool fatal = false;
    {
      const std::lock_guard lock(mutex_);
      forget_unsent();
      if (stopping_) break;
      last_failure_ = failure;
      failures = was_ready && seconds_since(ready_at_) > kHealthySeconds ? 1 : failures + 1;
      fatal = failures >= options_.max_failures || (load_failed_ && restarts_ == 0);
      state_ = fatal ? EngineState::kFailed : EngineState::kRestarting;
      changed_.notify_all();
    }
    log::error("engine: {}", failure);
    fail_outstanding(error(StatusCode::kUnavailable, "the engine stopped while this request ran"));
    if (fatal) {
      log::error("engine: not started again; requests are answered with 503");
      break;
    }
    if (!pause_before_restart(failures)) break;
    ++restarts_;
  }
  fail_outstanding(error(StatusCode::kUnavailable, "the server is shutting down"));
}

bool SocketEngineClient::Impl::pause_before_restart(int failures) {
  const double pause = std::min(
      options_.first_backoff * static_cast<double>(int64_t{1} << std::min(failures - 1, 20)),
      options_.max_backoff);
  log::info("engine: starting it again in {:.1f} s", pause);
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(pause), [&] { return stopping_; });
  return !stopping_;
}

// One life of the process. Says how it ended.
std::string SocketEngineClient::Impl::run_once() {
  std::vector<std::string> command = {options_.executable};
  command.insert(command.end(), options_.arguments.begin(), options_.arguments.end());
  Result<ChildProcess> child = ChildProcess::start(command);
  if (!child.ok()) return child.status().message();
  pid_ = child->pid();
  reader_ = {};
  {
    const std::lock_guard lock(mutex_);
    heard_at_ = Clock::now();
    seconds_since_step_ = 0;
    load_failed_ = false;
    forget_unsent();
    queue_message(wire::Start{to_json(options_.engine).dump()});
  }
  const std::string problem = serve(*child);
  const std::string end = child->end(problem.empty() ? kGraceSeconds : 0);
  const std::lock_guard lock(mutex_);
  if (load_failed_) return last_failure_;
  return problem.empty() ? fmt::format("the process {}", end) : problem;
}

// Exchanges messages until the process has closed its socket (empty), or is given up (why).
std::string SocketEngineClient::Impl::serve(ChildProcess& child) {
  std::string problem;
  for (;;) {
    pollfd fds[2] = {{child.socket(), POLLIN, 0}, {wake_fd_, POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return {};
      if (!outgoing_.empty()) fds[0].events |= POLLOUT;
    }
    if (::poll(fds, 2, kPollMilliseconds) < 0 && errno != EINTR) {
      return fmt::format("poll: {}", std::strerror(errno));
    }
    uint64_t count = 0;
    if (fds[1].revents != 0) static_cast<void>(!::read(wake_fd_, &count, sizeof count));
    if (!exchange(child.socket(), problem)) return problem;
    if (problem = overdue(); !problem.empty()) return problem;
  }
}

bool SocketEngineClient::Impl::exchange(int socket, std::string& problem) {
  return write_messages(socket, problem) && read_messages(socket, problem);
}

bool SocketEngineClient::Impl::write_messages(int socket, std::string& problem) {
  const std::lock_guard lock(mutex_);
  while (!outgoing_.empty()) {
    const std::string& frame = outgoing_.front().frame;
    const ssize_t n =
        ::send(socket, frame.data() + sent_of_first_, frame.size() - sent_of_first_, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EPIPE || errno == ECONNRESET)) break;
    if (n < 0) {
      problem = fmt::format("send: {}", std::strerror(errno));
      return false;
    }
    sent_of_first_ += static_cast<size_t>(n);
    if (sent_of_first_ < frame.size()) continue;
    outgoing_.pop_front();
    sent_of_first_ = 0;
  }
  return true;
}

bool SocketEngineClient::Impl::read_messages(int socket, std::string& problem) {
  char bytes[1 << 16];
  for (;;) {
    const ssize_t n = ::recv(socket, bytes, sizeof bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) return false;  // closed
    reader_.append({bytes, static_cast<size_t>(n)});
    for (;;) {
      Result<std::optional<wire::Message>> message = reader_.next();
      if (!message.ok()) {
        problem = message.status().message();
        return false;
      }
      if (!message->has_value()) break;
      handle(**message);
    }
  }
}

std::string SocketEngineClient::Impl::overdue() const {
  const std::lock_guard lock(mutex_);
  const double silent = seconds_since(heard_at_);
  if (silent > options_.heartbeat_timeout) {
    return fmt::format("the process {} gave no sign for {:.0f} s and was killed", pid_.load(),
                       silent);
  }
  if (seconds_since_step_ > options_.step_timeout) {
    return fmt::format("the process {} was in one step for {:.0f} s and was killed", pid_.load(),
                       seconds_since_step_);
  }
  return {};
}

void SocketEngineClient::Impl::handle(wire::Message& message) {
  {
    const std::lock_guard lock(mutex_);
    heard_at_ = Clock::now();
  }
  if (auto* hello = std::get_if<wire::Hello>(&message)) return handle(*hello);
  if (auto* failed = std::get_if<wire::Failed>(&message)) return handle(*failed);
  if (auto* outputs = std::get_if<wire::Outputs>(&message)) return handle(*outputs);
  if (auto* heartbeat = std::get_if<wire::Heartbeat>(&message)) return handle(*heartbeat);
  log::warning("engine: sent a message of type {} that is not for the front", message.index());
}

void SocketEngineClient::Impl::handle(wire::Hello& hello) {
  ready_at_ = Clock::now();
  const std::lock_guard lock(mutex_);
  info_ = std::move(hello.info);
  state_ = EngineState::kReady;
  changed_.notify_all();
}

void SocketEngineClient::Impl::handle(wire::Failed& failed) {
  const std::lock_guard lock(mutex_);
  load_failed_ = true;
  last_failure_ = failed.status.message();
}

void SocketEngineClient::Impl::handle(wire::Heartbeat& heartbeat) {
  const std::lock_guard lock(mutex_);
  seconds_since_step_ = heartbeat.seconds_since_step;
  if (state_ == EngineState::kReady) stats_ = std::move(heartbeat.stats);
}

void SocketEngineClient::Impl::handle(wire::Outputs& outputs) {
  for (RequestOutput& output : outputs.outputs) deliver(output);
}

void SocketEngineClient::Impl::deliver(RequestOutput& output) {
  std::shared_ptr<Outstanding> request;
  {
    const std::lock_guard lock(mutex_);
    const auto found = outstanding_.find(output.id);
    if (found == outstanding_.end()) return;  // cancelled meanwhile
    request = found->second;
    if (output.finish_reason != FinishReason::kNone) {
      outstanding_.erase(found);
      wire_ids_.erase(request->client_id);
    }
    delivering_ = true;
  }
  output.id = request->client_id;
  request->on_output(output);
  const std::lock_guard lock(mutex_);
  delivering_ = false;
  changed_.notify_all();
}

void SocketEngineClient::Impl::fail_outstanding(const Status& status) {
  std::map<std::string, std::shared_ptr<Outstanding>> failed;
  {
    const std::lock_guard lock(mutex_);
    failed.swap(outstanding_);
    wire_ids_.clear();
    for (const auto& [wire_id, request] : failed) take_back(wire_id);
    changed_.notify_all();
  }
  if (!failed.empty()) wake();
  for (const auto& [wire_id, request] : failed) {
    RequestOutput output;
    output.id = request->client_id;
    output.finish_reason = FinishReason::kError;
    output.status = status;
    request->on_output(output);
  }
}

// --- The client. ---

Result<std::unique_ptr<SocketEngineClient>> SocketEngineClient::start(
    EngineProcessOptions options) {
  ROTA_RETURN_IF_ERROR(validate(options.engine));
  const int wake_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd < 0) return error(StatusCode::kIo, "eventfd: {}", std::strerror(errno));
  return std::unique_ptr<SocketEngineClient>(
      new SocketEngineClient(std::make_unique<Impl>(std::move(options), wake_fd)));
}

SocketEngineClient::SocketEngineClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SocketEngineClient::~SocketEngineClient() = default;

EngineState SocketEngineClient::state() const { return impl_->state(); }
double SocketEngineClient::seconds_since_heartbeat() const {
  return impl_->seconds_since_heartbeat();
}
Result<EngineInfo> SocketEngineClient::info() const { return impl_->info(); }
Status SocketEngineClient::submit(EngineRequest request, OutputFn on_output) {
  return impl_->submit(std::move(request), std::move(on_output));
}
void SocketEngineClient::cancel(std::string_view id) { impl_->cancel(id); }
EngineStats SocketEngineClient::stats() const { return impl_->stats(); }
Status SocketEngineClient::wait_until_ready(double seconds) const {
  return impl_->wait_until_ready(seconds);
}
bool SocketEngineClient::drain(double seconds) { return impl_->drain(seconds); }
pid_t SocketEngineClient::pid() const { return impl_->pid(); }
int64_t SocketEngineClient::restarts() const { return impl_->restarts(); }
int64_t SocketEngineClient::unsent_bytes() const { return impl_->unsent_bytes(); }

}  // namespace rota
