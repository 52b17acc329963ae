// Whether and when an engine that has failed is started again.
//
//   RestartPolicy policy(limits);
//   policy.failed(served_seconds);
//   if (policy.exhausted()) ...            // it stays down
//   sleep(policy.pause());
//
// Contract: the first failure after a healthy minute costs no pause, as clients wait for their
// streams to go on; each one behind it doubles the pause. Minutes are those in which the engine
// served: an engine that needs long to load and dies each time comes to its limit too.
#pragma once

#include <cstdint>
#include <deque>

namespace rota {

struct RestartLimits {
  int max_failures = 5;             // more than these within
  double max_failure_minutes = 10;  // minutes of service: given up
  double first_backoff = 0.5;       // seconds before the second start in a row; doubles
  double max_backoff = 30;
};

class RestartPolicy {
 public:
  explicit RestartPolicy(const RestartLimits& limits) : limits_(limits) {}

  // It has ended after it had served for so long; 0: it never was ready.
  void failed(double served_seconds);

  bool exhausted() const { return recent_failures() > limits_.max_failures; }
  int64_t recent_failures() const { return static_cast<int64_t>(failed_at_.size()); }
  double pause() const;  // seconds

 private:
  RestartLimits limits_;
  double served_ = 0;             // seconds, of all lives
  std::deque<double> failed_at_;  // on the clock of served_; those that still count
  int in_a_row_ = 0;
};

}  // namespace rota
