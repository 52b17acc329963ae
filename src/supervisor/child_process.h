// A child process that talks over a socket: started, watched, ended.
//
//   ROTA_ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::start({"/proc/self/exe", "engine-worker"}));
//   poll(child.socket()) ...
//   std::string end = child.end(seconds);      // "was killed by signal 9 (Killed)"
//
// Contract: the child sees its end of the socket as descriptor 3, named by `--fd 3` at the end of
// its arguments, and no other descriptor of ours but standard error (its standard output goes there
// too). It is killed when this process, or the thread that started it, ends. start_group() starts
// one without a socket, with an environment of its own, as a process group that is ended as a
// whole: what one of its processes connects with later is given to it by set_socket().
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/status.h"

namespace rota {

// Where a child's standard output and error go; -1: to our standard error.
struct ChildStreams {
  int output = -1;
  int errors = -1;
};

class ChildProcess {
 public:
  // command: the executable, then its arguments.
  static Result<ChildProcess> start(const std::vector<std::string>& command);
  static Result<ChildProcess> start_group(const std::vector<std::string>& command,
                                          const std::vector<std::string>& environment,
                                          const ChildStreams& streams = {});

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();  // kills it if it still runs

  pid_t pid() const { return pid_; }
  int socket() const { return socket_; }             // non-blocking; -1: none
  void set_socket(int socket) { socket_ = socket; }  // takes it
  bool has_ended() const;

  // Closes the socket, which asks it to end; kills it after `seconds`. Says how it ended.
  std::string end(double seconds);

 private:
  ChildProcess(pid_t pid, int socket, bool group) : pid_(pid), socket_(socket), group_(group) {}
  void kill() const;

  pid_t pid_ = -1;
  int socket_ = -1;
  bool group_ = false;  // it leads a process group
};

// Of waitpid's status, with the meaning of the exit codes that the engine has.
std::string describe_exit(int wait_status);

}  // namespace rota
