#include "platform/thread_team.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "platform/topology.h"

namespace rota {
namespace {

class ThreadTeamSizes : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, ThreadTeamSizes, ::testing::Values(1, 2, 3, 8));

TEST_P(ThreadTeamSizes, EveryItemRunsOnce) {
  ThreadTeam team({.threads = GetParam(), .pin = false});
  ASSERT_EQ(team.size(), GetParam());
  for (const int64_t items : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(items));
    team.parallel_for(items, [&](int64_t item, int member) {
      EXPECT_GE(member, 0);
      EXPECT_LT(member, team.size());
      runs[static_cast<size_t>(item)].fetch_add(1);
    });
    for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
  }
}

// Loops that follow one another without a pause: a worker that is late for one must not run items
// of the next with the fields of the last, nor twice. Results are written without atomics, so a
// missing barrier shows as a wrong sum (or under a thread sanitizer).
TEST_P(ThreadTeamSizes, ManyShortLoopsFollowOneAnother) {
  ThreadTeam team({.threads = GetParam(), .pin = false});
  std::vector<int64_t> values(64);
  int64_t expected = 0;
  for (int64_t loop = 0; loop < 20000; ++loop) {
    const int64_t items = 1 + loop % 64;
    team.parallel_for(items, [&](int64_t item, int) { values[static_cast<size_t>(item)] += loop; });
    expected += items * loop;
  }
  EXPECT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}), expected);
}

TEST_P(ThreadTeamSizes, ParkedMembersWakeAgain) {
  ThreadTeam team({.threads = GetParam(), .pin = true});
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // longer than the spin
    std::atomic<int64_t> sum{0};
    team.parallel_for(100, [&](int64_t item, int) { sum.fetch_add(item); });
    EXPECT_EQ(sum.load(), 4950);
  }
}

TEST(ThreadTeam, ItemsAreSharedAmongMembers) {
  ThreadTeam team({.threads = 2, .pin = false});
  // Each item waits until the other one has begun: only two members at once can finish this.
  std::atomic<int> begun{0};
  std::atomic<int> members{0};
  team.parallel_for(2, [&](int64_t, int member) {
    members.fetch_or(1 << member);
    begun.fetch_add(1);
    while (begun.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(members.load(), 3);
}

TEST(ThreadTeam, ZeroThreadsMeansOneForEachCore) {
  ThreadTeam team({.threads = 0, .pin = true});
  EXPECT_EQ(team.size(), static_cast<int>(usable_cpus().one_per_core.size()));
}

TEST(ThreadTeam, TheCallersAffinityIsRestored) {
  cpu_set_t before, after;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  {
    ThreadTeam team({.threads = 2, .pin = true});
  }
  ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

// Measurements start threads of their own from a pinned caller: on one core they would see half of
// the machine.
TEST(Pinning, AThreadOfAPinnedCallerCanLeaveItsCore) {
  ThreadTeam team({.threads = 1, .pin = true});
  for (const int cpu : usable_cpus().logical) {
    int ran_on = -1;
    std::thread([&] { ran_on = pin_this_thread(cpu) ? sched_getcpu() : -1; }).join();
    EXPECT_EQ(ran_on, cpu);
  }
}

TEST(ThreadTeam, AFunctionObjectOfTheCallerIsUsedInPlace) {
  ThreadTeam team({.threads = 2, .pin = false});
  struct Counter {
    std::atomic<int> calls{0};
    void operator()(int64_t, int) { calls.fetch_add(1); }
  } counter;
  team.parallel_for(10, counter);
  EXPECT_EQ(counter.calls.load(), 10);
}

TEST(ThreadTeam, ATeamBesideOthersTakesItsOwnCores) {
  const std::vector<int>& cores = usable_cpus().one_per_core;
  const int last = static_cast<int>(cores.size()) - 1;
  cpu_set_t mask;
  {
    ThreadTeam team({.threads = 1, .pin = true, .first_core = last});
    ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
    EXPECT_EQ(CPU_COUNT(&mask), 1);
    EXPECT_TRUE(CPU_ISSET(cores.back(), &mask));
    EXPECT_EQ(team.cpus(), std::vector<int>{cores.back()});
  }
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  ThreadTeam crowded({.threads = 1, .pin = true, .first_core = 0, .crowded = true});
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  EXPECT_TRUE(CPU_EQUAL(&mask, &before));
  EXPECT_TRUE(crowded.cpus().empty());
}

}  // namespace
}  // namespace rota
