// A child process that talks over a socket: started, watched, ended.
//
//   ROTA_ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::start({"/proc/self/exe", "engine-worker"}));
//   poll(child.socket()) ...
//   std::string end = child.end(seconds);      // "was killed by signal 9 (Killed)"
//
// Contract: the child sees its end of the socket as descriptor 3, named by `--fd 3` at the end of
// its arguments, and no other descriptor of ours but standard error (its standard output goes there
// too). It is killed when this process, or the thread that started it, ends.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/status.h"

namespace rota {

class ChildProcess {
 public:
  // command: the executable, then its arguments.
  static Result<ChildProcess> start(const std::vector<std::string>& command);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();  // kills it if it still runs

  pid_t pid() const { return pid_; }
  int socket() const { return socket_; }  // non-blocking

  // Closes the socket, which asks it to end; kills it after `seconds`. Says how it ended.
  std::string end(double seconds);

 private:
  ChildProcess(pid_t pid, int socket) : pid_(pid), socket_(socket) {}
  pid_t pid_ = -1;
  int socket_ = -1;
};

// Of waitpid's status, with the meaning of the exit codes that the engine has.
std::string describe_exit(int wait_status);

}  // namespace rota
