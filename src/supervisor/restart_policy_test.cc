#include "supervisor/restart_policy.h"

#include <gtest/gtest.h>

namespace rota {
namespace {

TEST(RestartPolicy, TheFirstFailureCostsNoPauseAndOthersDouble) {
  RestartPolicy policy({.max_failures = 100, .first_backoff = 0.5, .max_backoff = 3});
  for (const double pause : {0.0, 0.5, 1.0, 2.0, 3.0, 3.0}) {
    policy.failed(1);
    EXPECT_EQ(policy.pause(), pause);
  }
  policy.failed(61);  // a healthy minute
  EXPECT_EQ(policy.pause(), 0);
  for (int i = 0; i < 90; ++i) policy.failed(0);
  EXPECT_EQ(policy.pause(), 3);
}

TEST(RestartPolicy, MoreThanTheLimitWithinTheMinutesIsGivenUp) {
  RestartPolicy policy({.max_failures = 3, .max_failure_minutes = 10});
  for (int i = 0; i < 3; ++i) {
    policy.failed(100);
    EXPECT_FALSE(policy.exhausted());
  }
  policy.failed(100);
  EXPECT_TRUE(policy.exhausted());
  EXPECT_EQ(policy.recent_failures(), 4);
}

TEST(RestartPolicy, FailuresFarApartAreForgotten) {
  RestartPolicy policy({.max_failures = 2, .max_failure_minutes = 10});
  for (int i = 0; i < 50; ++i) {
    policy.failed(301);
    EXPECT_FALSE(policy.exhausted()) << i;
  }
}

// However long each attempt to load takes: it serves no second in between.
TEST(RestartPolicy, AnEngineThatNeverServesComesToItsLimit) {
  RestartPolicy policy({.max_failures = 2, .max_failure_minutes = 0.001});
  policy.failed(1000);
  policy.failed(0);
  EXPECT_FALSE(policy.exhausted());
  policy.failed(0);
  EXPECT_TRUE(policy.exhausted());
}

}  // namespace
}  // namespace rota
