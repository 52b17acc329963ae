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

// What execve() takes; the words outlive it.
std::vector<char*> pointers_to(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.data()));
  pointers.push_back(nullptr);
  return pointers;
}

// What a child becomes.
struct Program {
  char* const* command;
  char* const* environment;
  int socket;  // -1: none
  ChildStreams streams;
  bool group;  // of its own
};

// Between fork and exec: only what is safe while other threads of the parent held locks.
[[noreturn]] void become(const Program& program, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  if (program.group) ::setpgid(0, 0);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = ::open("/dev/null", O_RDONLY);
  if (null >= 0) ::dup2(null, STDIN_FILENO);
  if (program.streams.errors >= 0) ::dup2(program.streams.errors, STDERR_FILENO);
  ::dup2(program.streams.output >= 0 ? program.streams.output : STDERR_FILENO, STDOUT_FILENO);
  if (program.socket == kChildSocket) {
    ::fcntl(program.socket, F_SETFD, 0);
  } else if (program.socket >= 0) {
    ::dup2(program.socket, kChildSocket);
  }
  // Sockets of clients must not live on in the child when the front closes them.
  const int first_closed = program.socket >= 0 ? kChildSocket + 1 : kChildSocket;
  ::syscall(SYS_close_range, static_cast<unsigned>(first_closed), ~0U, 0U);
  ::execve(program.command[0], program.command, program.environment);
  ::_exit(127);
}

// The child's id.
Result<pid_t> start_program(const Program& program) {
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become(program, parent);
  if (pid < 0) return system_error("fork");
  if (program.group) ::setpgid(pid, pid);  // whoever comes first: it may be ended at once
  return pid;
}

std::string meaning_of(int code) {
  switch (code) {
    case kMappedFileLostExitCode:
      return ": a weights file became shorter while it was mapped";
    case kEngineLoadFailedExitCode:
      return ": the model could not be loaded";
    case kEngineProtocolExitCode:
      return ": it received what it does not understand";
    case kEngineRankLostExitCode:
      return ": a rank was lost or fell out of step with the others";
    case 127:
      return ": the program could not be started";
    default:
      // As shells and mpirun say it.
      return code > 128 && code - 128 < NSIG
                 ? fmt::format(": one of its processes was killed by signal {} ({})", code - 128,
                               ::strsignal(code - 128))
                 : "";
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
  const Result<pid_t> pid = start_program({.command = pointers_to(words).data(),
                                           .environment = environ,
                                           .socket = pair[1],
                                           .streams = {},
                                           .group = false});
  ::close(pair[1]);
  if (!pid.ok()) {
    ::close(pair[0]);
    return pid.status();
  }
  ::fcntl(pair[0], F_SETFL, ::fcntl(pair[0], F_GETFL) | O_NONBLOCK);
  return ChildProcess(*pid, pair[0], false);
}

Result<ChildProcess> ChildProcess::start_group(const std::vector<std::string>& command,
                                               const std::vector<std::string>& environment,
                                               const ChildStreams& streams) {
  ROTA_ASSIGN_OR_RETURN(const pid_t pid,
                        start_program({.command = pointers_to(command).data(),
                                       .environment = pointers_to(environment).data(),
                                       .socket = -1,
                                       .streams = streams,
                                       .group = true}));
  return ChildProcess(pid, -1, true);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      socket_(std::exchange(other.socket_, -1)),
      group_(other.group_) {}

ChildProcess::~ChildProcess() { end(0); }

bool ChildProcess::has_ended() const {
  siginfo_t found{};
  return pid_ < 0 ||
         ::waitid(P_PID, static_cast<id_t>(pid_), &found, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         found.si_pid == pid_;
}

void ChildProcess::kill() const { ::kill(group_ ? -pid_ : pid_, SIGKILL); }

std::string ChildProcess::end(double seconds) {
  if (pid_ < 0) return "has ended";
  if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  const auto start = Clock::now();
  while (!has_ended() && seconds_since(start) < seconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  // Before it is waited for: until then its number, and its group's, is no one else's.
  if (group_ || !has_ended()) kill();
  const pid_t pid = std::exchange(pid_, -1);
  int status = 0;
  pid_t waited = 0;
  while ((waited = ::waitpid(pid, &status, 0)) < 0 && errno == EINTR) {
  }
  return waited == pid ? describe_exit(status) : "has ended";
}

}  // namespace rota
