#include "engine/rank_pulse.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

namespace rota {
namespace {

constexpr PulseLimits kLimits = {.first = 60, .later = 5};

Clock::time_point after(Clock::time_point start, double seconds) {
  return start +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

TEST(RankPulses, WhoIsSilentTooLongIsNamed) {
  const Clock::time_point start = Clock::now();
  RankPulses pulses(3);
  EXPECT_TRUE(pulses.read("rota-rank-lives 0", start));
  EXPECT_TRUE(pulses.read("rota-rank-lives 2\r", start)) << "as a terminal ends lines";
  EXPECT_FALSE(pulses.silent(kLimits, after(start, 4)).has_value());
  EXPECT_TRUE(pulses.read("rota-rank-lives 0", after(start, 4)));
  const auto silent = pulses.silent(kLimits, after(start, 6));
  ASSERT_TRUE(silent.has_value());
  EXPECT_EQ(silent->rank, 2);
  EXPECT_TRUE(silent->started);
  EXPECT_NEAR(silent->seconds, 6, 0.01);
}

TEST(RankPulses, ARankThatWasNeverThereHasLonger) {
  const Clock::time_point start = Clock::now();
  RankPulses pulses(1);
  EXPECT_FALSE(pulses.silent(kLimits, after(start, 59)).has_value());
  const auto silent = pulses.silent(kLimits, after(start, 62));
  ASSERT_TRUE(silent.has_value());
  EXPECT_FALSE(silent->started);
}

TEST(RankPulses, ARankThatHasLoadedIsNotAwaited) {
  const Clock::time_point start = Clock::now();
  RankPulses pulses(1);
  EXPECT_TRUE(pulses.read("rota-rank-loaded 0", start));
  EXPECT_FALSE(pulses.silent(kLimits, after(start, 1000)).has_value());
}

TEST(RankPulses, OtherLinesAreNoneOfOurs) {
  RankPulses pulses(2);
  for (const char* line :
       {"", "hello", "rota-rank-lives", "rota-rank-lives 2", "rota-rank-lives -1",
        "rota-rank-lives 1x", "rota-rank-loaded ", " rota-rank-lives 1"}) {
    EXPECT_FALSE(pulses.read(line)) << line;
  }
}

// What a rank says is what the front understands, and saying it waits for nobody.
TEST(RankPulse, SaysThatItLivesAndThatItHasLoaded) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const int before = ::dup(STDOUT_FILENO);
  ::dup2(pipe[1], STDOUT_FILENO);
  ::setenv("OMPI_COMM_WORLD_RANK", "3", 1);
  {
    RankPulse pulse;
    char first = 0;
    EXPECT_EQ(::read(pipe[0], &first, 1), 1);
    pulse.loaded();
  }
  ::unsetenv("OMPI_COMM_WORLD_RANK");
  ::dup2(before, STDOUT_FILENO);
  ::close(before);
  ::close(pipe[1]);
  std::string said = "r";
  std::array<char, 256> some{};
  for (ssize_t n = 0; (n = ::read(pipe[0], some.data(), some.size())) > 0;) {
    said.append(some.data(), static_cast<size_t>(n));
  }
  ::close(pipe[0]);
  EXPECT_TRUE(said.starts_with("rota-rank-lives 3\n")) << said;
  EXPECT_TRUE(said.ends_with("rota-rank-loaded 3\n")) << said;
}

}  // namespace
}  // namespace rota
