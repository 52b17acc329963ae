// Runs a chat template in a process of its own.
//
// Why: fuel bounds what a template executes, but not what the interpreter does with the values that
// it made: comparing, printing or dropping deep, cyclic or shared structures overflows the stack or
// takes exponential time. In a worker such a template costs one process, and the caller an error.
// The worker is this program again (/proc/self/exe): a constructor in template_worker.cc takes over
// before main().
//
// Contract: a worker holds one template and serves one call at a time; it has kCpuSeconds of
// computing for each and kMemoryBytes in all, and ends with its parent. One that is stopped or
// starved and does not answer within the caller's patience is of no further use. Example:
//   ROTA_ASSIGN_OR_RETURN(auto worker, TemplateWorker::start());
//   std::optional<TemplateReply> reply = worker->compile(source);  // nothing: the worker died of it
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/rust/rota_text.h"
#include "text/tokenizer.h"

namespace rota {

// How long an answer may take by the clock on the wall: six times the computing that is allowed,
// for busy machines.
inline constexpr std::chrono::seconds kTemplatePatience{30};

struct TemplateRequest {
  std::string variables;  // a JSON object
  uint64_t fuel = 0;
  uint64_t max_output = 0;
  int64_t unix_seconds = 0;
  TextMarkers markers;
  std::chrono::milliseconds patience = kTemplatePatience;
};

// What the template library said: the text, or the message of an error.
struct TemplateReply {
  RotaTextCode code = kRotaTextOk;
  std::string text;
};

class TemplateWorker {
 public:
  static constexpr unsigned kCpuSeconds = 5;
  static constexpr uint64_t kMemoryBytes = uint64_t{1} << 30;

  // kIo: no process or socket to be had.
  static Result<std::unique_ptr<TemplateWorker>> start();
  ~TemplateWorker();
  TemplateWorker(const TemplateWorker&) = delete;
  TemplateWorker& operator=(const TemplateWorker&) = delete;

  // Nothing: the worker is dead, or does not answer.
  std::optional<TemplateReply> compile(std::string_view source);
  std::optional<TemplateReply> render(const TemplateRequest& request);
  // After nothing came back: whether patience ran out; the worker may live and must be dropped.
  bool timed_out() const { return timed_out_; }
  // After nothing came back in time: true if the template did it, false if somebody killed the
  // worker.
  bool died_of_template();

 private:
  TemplateWorker(pid_t pid, int socket) : pid_(pid), socket_(socket) {}
  std::optional<TemplateReply> call(std::string_view message, std::chrono::milliseconds patience);
  int wait();

  pid_t pid_;  // -1: waited for
  int socket_;
  bool timed_out_ = false;
};

}  // namespace rota
