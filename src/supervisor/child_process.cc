#include "supervisor/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "engine/engine_server.h"
#include "platform/clock.h"
#include "platform/mapped_file.h"

namespace rota {
namespace {

constexpr int kChildSocket = 3;

Status system_error(std::string_view what) {
  return error(StatusCode::kIo, "{}: {}", what, std::strerror(errno));
}

// Between fork and exec: only what is safe while other threads of the parent held locks.
[[noreturn]] void become(char* const* command, int socket, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = ::open("/dev/null", O_RDONLY);
  if (null >= 0) ::dup2(null, STDIN_FILENO);
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  if (socket == kChildSocket) {
    ::fcntl(socket, F_SETFD, 0);
  } else {
    ::dup2(socket, kChildSocket);
  }
  // Sockets of clients must not live on in the child when the front closes them.
  ::syscall(SYS_close_range, static_cast<unsigned>(kChildSocket + 1), ~0U, 0U);
  ::execv(command[0], command);
  ::_exit(127);
}

std::string meaning_of(int code) {
  switch (code) {
    case kMappedFileLostExitCode:
      return ": a weights file became shorter while it was mapped";
    case kEngineLoadFailedExitCode:
      return ": the model could not be loaded";
    case kEngineProtocolExitCode:
      return ": it received what it does not understand";
    case 127:
      return ": the program could not be started";
    default:
      return "";
  }
}

}  // namespace

std::string describe_exit(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    return fmt::format("was killed by signal {} ({})", signal, ::strsignal(signal));
  }
  const int code = WEXITSTATUS(wait_status);
  return fmt::format("exited with code {}{}", code, meaning_of(code));
}

Result<ChildProcess> ChildProcess::start(const std::vector<std::string>& command) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    return system_error("socketpair");
  }
  std::vector<std::string> words = command;
  words.push_back("--fd");
  words.push_back(std::to_string(kChildSocket));
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);

  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become(pointers.data(), pair[1], parent);
  const int fork_error = errno;
  ::close(pair[1]);
  if (pid < 0) {
    ::close(pair[0]);
    errno = fork_error;
    return system_error("fork");
  }
  ::fcntl(pair[0], F_SETFL, ::fcntl(pair[0], F_GETFL) | O_NONBLOCK);
  return ChildProcess(pid, pair[0]);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), socket_(std::exchange(other.socket_, -1)) {}

ChildProcess::~ChildProcess() { end(0); }

std::string ChildProcess::end(double seconds) {
  if (pid_ < 0) return "has ended";
  ::close(std::exchange(socket_, -1));
  const pid_t pid = std::exchange(pid_, -1);
  const auto start = Clock::now();
  int status = 0;
  pid_t waited = 0;
  while ((waited = ::waitpid(pid, &status, WNOHANG)) == 0 && seconds_since(start) < seconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (waited == 0) {
    ::kill(pid, SIGKILL);
    while ((waited = ::waitpid(pid, &status, 0)) < 0 && errno == EINTR) {
    }
  }
  return waited == pid ? describe_exit(status) : "has ended";
}

}  // namespace rota
