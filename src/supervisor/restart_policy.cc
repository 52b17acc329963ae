#include "supervisor/restart_policy.h"

#include <algorithm>

namespace rota {
namespace {

constexpr double kHealthySeconds = 60;  // after so long a failure is the first one again

}  // namespace

void RestartPolicy::failed(double served_seconds) {
  served_ += served_seconds;
  in_a_row_ = served_seconds > kHealthySeconds ? 1 : in_a_row_ + 1;
  failed_at_.push_back(served_);
  while (served_ - failed_at_.front() > limits_.max_failure_minutes * 60) failed_at_.pop_front();
}

double RestartPolicy::pause() const {
  if (in_a_row_ < 2) return 0;
  const int doublings = std::min(in_a_row_ - 2, 20);
  return std::min(limits_.first_backoff * static_cast<double>(int64_t{1} << doublings),
                  limits_.max_backoff);
}

}  // namespace rota
