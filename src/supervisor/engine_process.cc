#include "supervisor/engine_process.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/log.h"
#include "engine/engine_stats.h"
#include "engine/wire.h"
#include "platform/clock.h"
#include "supervisor/engine_child.h"
#include "supervisor/outgoing.h"
#include "supervisor/request_ledger.h"

namespace rota {
namespace {

constexpr double kGraceSeconds = 2;  // for a process that was asked to end
constexpr int kPollMilliseconds = 250;

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
      : options_(std::move(options)),
        wake_fd_(wake_fd),
        ledger_(options_.engine.seed),
        policy_(options_.restarts),
        thread_([this] { run(); }) {}

  ~Impl() {
    end();
    ::close(wake_fd_);
  }
  void end() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake();
    changed_.notify_all();
    std::call_once(ended_, [this] { thread_.join(); });
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
    EngineStats stats = stats_;
    stats.engine_restarts = restarts_;
    stats.replayed_requests = ledger_.replayed();
    return stats;
  }
  pid_t pid() const { return pid_; }
  int64_t restarts() const { return restarts_; }
  int64_t unsent_bytes() const {
    const std::lock_guard lock(mutex_);
    return outgoing_.bytes();
  }

  Status submit(EngineRequest request, OutputFn on_output);
  void cancel(std::string_view id);
  Status wait_until_ready(double seconds) const;
  bool drain(double seconds);

 private:
  // The thread that starts and serves the process.
  void run();
  std::string run_once();
  std::string serve(EngineChild& child);
  bool exchange(int socket, std::string& problem);
  bool read_messages(int socket, std::string& problem);
  bool write_messages(int socket, std::string& problem);
  std::string overdue(const EngineChild& child) const;
  bool goes_on_after(const std::string& failure);
  bool pause_before_restart(double seconds);

  void handle(wire::Message& message);
  void handle(wire::Hello& hello);
  void handle(wire::Failed& failed);
  void handle(wire::Outputs& outputs);
  void handle(wire::Heartbeat& heartbeat);
  void deliver(RequestOutput& output);
  void fail_outstanding(const Status& status);
  static void tell_end(const EndedRequest& ended);

  // Under the lock.
  Status unavailable() const;   // why requests are not served now
  bool takes_requests() const;  // now, or when the engine is back
  void give_waiting();          // to the engine, if it is there
  void wake() const {
    const uint64_t one = 1;
    static_cast<void>(!::write(wake_fd_, &one, sizeof one));
  }

  const EngineProcessOptions options_;
  const int wake_fd_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;  // state_, ledger_, delivering_ or stopping_
  EngineState state_ = EngineState::kLoading;
  bool stopping_ = false;
  bool draining_ = false;
  bool load_failed_ = false;
  std::string last_failure_;
  std::optional<EngineInfo> info_;
  EngineStats stats_ = empty_stats();
  Clock::time_point heard_at_ = Clock::now();
  double seconds_since_step_ = 0;
  RequestLedger ledger_;
  bool delivering_ = false;  // an output function is running
  Outgoing outgoing_;

  std::atomic<pid_t> pid_ = -1;
  std::atomic<int64_t> restarts_ = 0;
  // Of the thread alone.
  wire::FrameReader reader_;
  RestartPolicy policy_;
  std::optional<Clock::time_point> ready_at_;  // of the engine that lives now
  std::once_flag ended_;
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

// An engine that was there before tells what it can serve.
bool SocketEngineClient::Impl::takes_requests() const {
  if (draining_ || stopping_) return false;
  return state_ == EngineState::kReady || (state_ == EngineState::kRestarting && info_);
}

void SocketEngineClient::Impl::give_waiting() {
  if (state_ != EngineState::kReady) return;
  const int64_t places = info_->max_num_seqs + info_->max_waiting;
  while (const auto next = ledger_.give_next(places)) {
    outgoing_.push_submit({next->to_send()});
  }
}

// --- Callers' threads. ---

Status SocketEngineClient::Impl::submit(EngineRequest request, OutputFn on_output) {
  {
    const std::lock_guard lock(mutex_);
    if (!takes_requests()) return unavailable();
    ROTA_RETURN_IF_ERROR(check_request(request, *info_));
    ROTA_RETURN_IF_ERROR(check_queue(ledger_.size(), *info_));
    if (ledger_.contains(request.id)) {
      return invalid_argument("request id \"{}\" is in use by a running request", request.id);
    }
    ledger_.accept(std::move(request), std::move(on_output));
    give_waiting();
  }
  wake();
  return {};
}

void SocketEngineClient::Impl::cancel(std::string_view id) {
  {
    const std::lock_guard lock(mutex_);
    const auto request = ledger_.remove(id);
    if (!request) return;
    if (request->with_engine) outgoing_.take_back(request->request.id);
    give_waiting();
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
                                 [&] { return ledger_.empty() && !delivering_; });
  }
  fail_outstanding(error(StatusCode::kUnavailable, "the server is shutting down"));
  return all_done;
}

// --- The thread of the process. ---

void SocketEngineClient::Impl::run() {
  for (;;) {
    ready_at_.reset();
    const std::string failure = run_once();
    pid_ = -1;
    if (!goes_on_after(failure)) break;
    ++restarts_;
  }
  fail_outstanding(error(StatusCode::kUnavailable, "the server is shutting down"));
}

// The engine has ended: whether another one is to be started now.
bool SocketEngineClient::Impl::goes_on_after(const std::string& failure) {
  policy_.failed(ready_at_ ? seconds_since(*ready_at_) : 0);
  std::vector<EndedRequest> ended;
  bool given_up = false;
  {
    const std::lock_guard lock(mutex_);
    outgoing_.clear();
    if (stopping_) return false;
    last_failure_ = failure;
    given_up = policy_.exhausted() || (load_failed_ && restarts_ == 0);
    state_ = given_up ? EngineState::kFailed : EngineState::kRestarting;
    ended = ledger_.engine_died(failure, info_ ? info_->max_num_seqs : 0);
    changed_.notify_all();
  }
  log::error("engine: {}", failure);
  for (const EndedRequest& it : ended) tell_end(it);
  if (!given_up) return pause_before_restart(policy_.pause());
  log::error("engine: not started again; requests are answered with 503");
  fail_outstanding(error(StatusCode::kUnavailable,
                         "the engine failed {} times and is not started again, the last time as {}",
                         policy_.recent_failures(), failure));
  return false;
}

bool SocketEngineClient::Impl::pause_before_restart(double seconds) {
  std::unique_lock lock(mutex_);
  log::info("engine: starting it again in {:.1f} s, for {} requests that wait", seconds,
            ledger_.size());
  changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return stopping_; });
  return !stopping_;
}

// One life of the process. Says how it ended.
std::string SocketEngineClient::Impl::run_once() {
  Result<EngineChild> child = EngineChild::start(options_, [this] {
    const std::lock_guard lock(mutex_);
    return stopping_;
  });
  if (!child.ok()) return child.status().message();
  pid_ = child->pid();
  reader_ = {};
  {
    const std::lock_guard lock(mutex_);
    heard_at_ = Clock::now();
    seconds_since_step_ = 0;
    load_failed_ = false;
    outgoing_.clear();
    outgoing_.push(wire::Start{to_json(options_.engine).dump()});
  }
  const std::string problem = serve(*child);
  const std::string end = child->end(problem.empty() ? kGraceSeconds : 0);
  const std::lock_guard lock(mutex_);
  if (load_failed_) return last_failure_;
  return problem.empty() ? fmt::format("the process {}", end) : problem;
}

// Exchanges messages until the process has closed its socket (empty), or is given up (why).
std::string SocketEngineClient::Impl::serve(EngineChild& child) {
  std::string problem;
  for (;;) {
    pollfd fds[] = {
        {child.socket(), POLLIN, 0}, {wake_fd_, POLLIN, 0}, {child.output(), POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return {};
      if (!outgoing_.empty()) fds[0].events |= POLLOUT;
    }
    if (::poll(fds, std::size(fds), kPollMilliseconds) < 0 && errno != EINTR) {
      return fmt::format("poll: {}", std::strerror(errno));
    }
    uint64_t count = 0;
    if (fds[1].revents != 0) static_cast<void>(!::read(wake_fd_, &count, sizeof count));
    if (!exchange(child.socket(), problem)) return problem;
    child.read_output();
    if (problem = overdue(child); !problem.empty()) return problem;
  }
}

bool SocketEngineClient::Impl::exchange(int socket, std::string& problem) {
  return write_messages(socket, problem) && read_messages(socket, problem);
}

bool SocketEngineClient::Impl::write_messages(int socket, std::string& problem) {
  const std::lock_guard lock(mutex_);
  const Status status = outgoing_.write_to(socket);
  problem = status.message();
  return status.ok();
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

std::string SocketEngineClient::Impl::overdue(const EngineChild& child) const {
  if (!ready_at_) {
    const std::string silence = child.silence(options_.engine.parallel.rank_timeout);
    if (!silence.empty()) return silence + "; all ranks were killed";
  }
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
  std::vector<EndedRequest> ended;
  {
    const std::lock_guard lock(mutex_);
    info_ = std::move(hello.info);
    state_ = EngineState::kReady;
    ended = ledger_.remove_unfit(*info_);
    give_waiting();
    changed_.notify_all();
  }
  for (const EndedRequest& it : ended) tell_end(it);
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
  std::shared_ptr<AcceptedRequest> request;
  {
    const std::lock_guard lock(mutex_);
    request = ledger_.take(output);
    if (!request) return;
    if (ledger_.waiting() > 0) give_waiting();
    delivering_ = true;
  }
  request->on_output(output);
  const std::lock_guard lock(mutex_);
  delivering_ = false;
  changed_.notify_all();
}

void SocketEngineClient::Impl::fail_outstanding(const Status& status) {
  std::vector<std::shared_ptr<AcceptedRequest>> all;
  {
    const std::lock_guard lock(mutex_);
    all = ledger_.remove_all();
    for (const auto& request : all) {
      if (request->with_engine) outgoing_.take_back(request->request.id);
    }
    changed_.notify_all();
  }
  if (!all.empty()) wake();
  for (const auto& request : all) tell_end({request, status});
}

void SocketEngineClient::Impl::tell_end(const EndedRequest& ended) {
  RequestOutput output;
  output.id = ended.request->client_id;
  output.finish_reason = FinishReason::kError;
  output.status = ended.status;
  output.cached_tokens = ended.request->cached_tokens.value_or(0);
  ended.request->on_output(output);
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
void SocketEngineClient::end() { impl_->end(); }
bool SocketEngineClient::drain(double seconds) { return impl_->drain(seconds); }
pid_t SocketEngineClient::pid() const { return impl_->pid(); }
int64_t SocketEngineClient::restarts() const { return impl_->restarts(); }
int64_t SocketEngineClient::unsent_bytes() const { return impl_->unsent_bytes(); }

}  // namespace rota
