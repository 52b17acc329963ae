#include "text/template_worker.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "text/ffi.h"

extern "C" char** environ;

namespace rota {
namespace {

constexpr const char* kWorkerVariable = "ROTA_TEMPLATE_WORKER";
constexpr int kWorkerSocket = STDIN_FILENO;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // their shadow memory does not fit into any limit
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

std::string why() { return std::error_code(errno, std::generic_category()).message(); }

// ---- Messages: a length of 8 bytes, then the bytes. ----

// One end of the socket, perhaps with a time by which all must have passed.
class Wire {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Wire(int socket) : socket_(socket) {}
  Wire(int socket, Clock::time_point deadline) : socket_(socket), deadline_(deadline) {}

  bool send_message(std::string_view message) {
    const uint64_t size = message.size();
    return send_all(&size, sizeof size) && send_all(message.data(), message.size());
  }

  std::optional<std::string> receive_message() {
    uint64_t size = 0;
    if (!receive_all(&size, sizeof size) || size > TemplateWorker::kMemoryBytes) {
      return std::nullopt;
    }
    std::string message(size, '\0');
    if (!receive_all(message.data(), message.size())) return std::nullopt;
    return message;
  }

  bool timed_out() const { return timed_out_; }

 private:
  bool send_all(const void* data, size_t size) {
    const char* at = static_cast<const char*>(data);
    while (size > 0) {
      if (!wait_for(POLLOUT)) return false;
      const ssize_t sent = send(socket_, at, size, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && passing(errno)) continue;
      if (sent <= 0) return false;
      at += sent;
      size -= static_cast<size_t>(sent);
    }
    return true;
  }

  bool receive_all(void* data, size_t size) {
    char* at = static_cast<char*>(data);
    while (size > 0) {
      if (!wait_for(POLLIN)) return false;
      const ssize_t got = recv(socket_, at, size, MSG_DONTWAIT);
      if (got < 0 && passing(errno)) continue;
      if (got <= 0) return false;
      at += got;
      size -= static_cast<size_t>(got);
    }
    return true;
  }

  static bool passing(int fault) { return fault == EINTR || fault == EAGAIN; }

  // False: the time is over.
  bool wait_for(int16_t events) {
    for (;;) {
      int milliseconds = -1;
      if (deadline_) {
        const auto left =
            std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - Clock::now()).count();
        milliseconds = static_cast<int>(std::clamp<int64_t>(left, 0, INT_MAX));
      }
      pollfd state{socket_, events, 0};
      const int ready = poll(&state, 1, milliseconds);
      if (ready > 0) return true;
      if (ready < 0 && passing(errno)) continue;
      timed_out_ = ready == 0;
      return false;
    }
  }

  int socket_;
  std::optional<Clock::time_point> deadline_;
  bool timed_out_ = false;
};

// ---- Both ends are the same program: values travel as they lie in memory. ----

class Writer {
 public:
  template <typename T>
  void value(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    message.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(std::string_view text) {
    value<uint64_t>(text.size());
    message += text;
  }
  std::string message;
};

class Reader {
 public:
  explicit Reader(std::string_view message) : rest_(message) {}
  template <typename T>
  T value() {
    T out{};
    const size_t size = std::min(sizeof out, rest_.size());
    std::ranges::copy(rest_.substr(0, size), reinterpret_cast<char*>(&out));
    rest_.remove_prefix(size);
    return out;
  }
  std::string_view text() {
    const size_t size = std::min<size_t>(value<uint64_t>(), rest_.size());
    const std::string_view out = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return out;
  }

 private:
  std::string_view rest_;
};

enum class Call : uint8_t { kCompile, kRender };

// ---- The worker's side. ----

class Server {
 public:
  std::string serve(std::string_view message) {
    Reader reader(message);
    const auto call = reader.value<Call>();
    RotaBuffer text{};
    const RotaTextCode code =
        call == Call::kCompile ? compile(reader, &text) : render(reader, &text);
    Writer reply;
    reply.value(code);
    reply.text(text.data == nullptr ? std::string() : ffi::take(text));
    return std::move(reply.message);
  }

 private:
  RotaTextCode compile(Reader& reader, RotaBuffer* error) {
    return rota_template_compile(ffi::view(reader.text()), &compiled_, error);
  }

  RotaTextCode render(Reader& reader, RotaBuffer* text) {
    const std::string_view variables = reader.text();
    RotaRenderOptions options{};
    options.fuel = reader.value<uint64_t>();
    options.max_output = reader.value<uint64_t>();
    options.unix_seconds = reader.value<int64_t>();
    options.markers.first = reader.value<uint32_t>();
    std::vector<uint32_t> originals(reader.value<uint32_t>());
    for (uint32_t& original : originals) original = reader.value<uint32_t>();
    options.markers.originals = originals.data();
    options.markers.count = originals.size();
    RotaBuffer error{};
    const RotaTextCode code =
        rota_template_render(compiled_, ffi::view(variables), &options, text, &error);
    if (code != kRotaTextOk) *text = error;
    return code;
  }

  RotaTemplate* compiled_ = nullptr;
};

void limit(int resource, rlim_t value) {
  const rlimit both{value, value};
  setrlimit(static_cast<__rlimit_resource>(resource), &both);
}

// Bytes of address space that the program takes before any template.
uint64_t own_size() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

[[noreturn]] void run_worker() {
  limit(RLIMIT_CORE, 0);
  if (!kSanitized) limit(RLIMIT_AS, own_size() + TemplateWorker::kMemoryBytes);
  Server server;
  Wire wire(kWorkerSocket);
  while (const std::optional<std::string> message = wire.receive_message()) {
    // SIGPROF ends the process.
    const itimerval budget{{0, 0}, {TemplateWorker::kCpuSeconds, 0}};
    setitimer(ITIMER_PROF, &budget, nullptr);
    if (!wire.send_message(server.serve(*message))) break;
  }
  _exit(0);
}

[[gnu::constructor]] void become_worker() {
  if (std::getenv(kWorkerVariable) != nullptr) run_worker();
}

// ---- The caller's side. ----

// How the worker is started: the socket for stdin and nothing else open; no signal blocked or
// ignored; in a group of its own, so that Ctrl-C in a terminal leaves it to its parent.
class SpawnSetup {
 public:
  explicit SpawnSetup(int socket) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_adddup2(&actions_, socket, kWorkerSocket);
    posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions_, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addclosefrom_np(&actions_, STDERR_FILENO + 1);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnSetup() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;
  const posix_spawn_file_actions_t* actions() const { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

std::optional<TemplateReply> reply_of(const std::optional<std::string>& message) {
  if (!message) return std::nullopt;
  Reader reader(*message);
  TemplateReply reply;
  reply.code = reader.value<RotaTextCode>();
  reply.text = reader.text();
  return reply;
}

}  // namespace

Result<std::unique_ptr<TemplateWorker>> TemplateWorker::start() {
  std::array<int, 2> sockets{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0) {
    return error(StatusCode::kIo, "chat template: no socket for its process: {}", why());
  }
  std::string variable = std::string(kWorkerVariable) + "=1";
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(variable.data());
  environment.push_back(nullptr);
  std::string name = "rota-chat-template";
  std::array<char*, 2> arguments = {name.data(), nullptr};

  pid_t pid = 0;
  const SpawnSetup setup(sockets[1]);
  const int failed = posix_spawn(&pid, "/proc/self/exe", setup.actions(), setup.attributes(),
                                 arguments.data(), environment.data());
  close(sockets[1]);
  if (failed != 0) {
    close(sockets[0]);
    return error(StatusCode::kIo, "chat template: its process cannot be started: {}",
                 std::error_code(failed, std::generic_category()).message());
  }
  return std::unique_ptr<TemplateWorker>(new TemplateWorker(pid, sockets[0]));
}

TemplateWorker::~TemplateWorker() {
  close(socket_);
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  wait();
}

// How it ended, as waitpid says; 0 if nobody knows any more.
int TemplateWorker::wait() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0) {
    if (errno != EINTR) return 0;
  }
  pid_ = -1;
  return status;
}

bool TemplateWorker::died_of_template() {
  if (pid_ < 0) return false;
  const int status = wait();
  if (!WIFSIGNALED(status)) return false;
  const int signal = WTERMSIG(status);
  return signal == SIGPROF || signal == SIGSEGV || signal == SIGBUS || signal == SIGABRT;
}

std::optional<TemplateReply> TemplateWorker::call(std::string_view message,
                                                  std::chrono::milliseconds patience) {
  Wire wire(socket_, Wire::Clock::now() + patience);
  std::optional<std::string> reply;
  if (wire.send_message(message)) reply = wire.receive_message();
  timed_out_ = wire.timed_out();
  return reply_of(reply);
}

std::optional<TemplateReply> TemplateWorker::compile(std::string_view source) {
  Writer writer;
  writer.value(Call::kCompile);
  writer.text(source);
  return call(writer.message, kTemplatePatience);
}

std::optional<TemplateReply> TemplateWorker::render(const TemplateRequest& request) {
  Writer writer;
  writer.value(Call::kRender);
  writer.text(request.variables);
  writer.value(request.fuel);
  writer.value(request.max_output);
  writer.value(request.unix_seconds);
  writer.value(static_cast<uint32_t>(request.markers.first));
  writer.value(static_cast<uint32_t>(request.markers.originals.size()));
  for (char32_t original : request.markers.originals) {
    writer.value(static_cast<uint32_t>(original));
  }
  return call(writer.message, request.patience);
}

}  // namespace rota
