#include "rota/doctor_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rota {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kMuch = 8LL << 30;

RankFacts rank_on(int rank, const std::string& host) {
  return {.rank = rank,
          .host = host,
          .machine = "machine of " + host,
          .program = "/usr/bin/rota",
          .build = "b1",
          .cores = 8,
          .machine_cpus = 8,
          .threads = 4,
          .pinned = true,
          .folder_free_bytes = kMuch,
          .shared_memory_free_bytes = kMuch,
          .neighbour = MemoryAccess::kAllowed};
}

// Two ranks on host one, a third on host two: all is well.
ProbeReport sound() {
  return {.ranks = {rank_on(0, "one"), rank_on(1, "one"), rank_on(2, "two")},
          .exchanges = {{"sum", ""}, {"all-gather", ""}, {"all-to-all", ""}},
          .model = {},
          .model_fault = {}};
}

ParallelChoice three(Transport transport) {
  return {.shape = {.dp = 3}, .transport = transport, .unused_flag = {}, .unused_because = {}};
}

std::vector<Check> checks_of(ProbeReport report, Transport transport = Transport::kAlltoallv) {
  ProbeAnswer answer;
  answer.report = std::move(report);
  return check_ranks(answer, three(transport), 3);
}

// The one that is not ok.
Check finding(const std::vector<Check>& checks) {
  Check found;
  int count = 0;
  for (const Check& it : checks) {
    if (it.verdict == Verdict::kOk) continue;
    found = it;
    ++count;
  }
  EXPECT_EQ(count, 1);
  EXPECT_THAT(found.found, Not(IsEmpty()));
  EXPECT_THAT(found.advice, Not(IsEmpty())) << "what to do";
  return found;
}

TEST(DoctorChecks, OfASoundClusterAllAreOkAndNeedNoAdvice) {
  const std::vector<Check> checks = checks_of(sound());
  EXPECT_EQ(worst(checks), Verdict::kOk);
  for (const Check& it : checks) EXPECT_THAT(it.advice, IsEmpty()) << it.name;
}

TEST(DoctorChecks, AnExchangeThatFailsMattersWhereTokensTravelByIt) {
  ProbeReport report = sound();
  report.exchanges.back().fault = "rank 2 did not come";
  const Check used = finding(checks_of(report, Transport::kAlltoallv));
  EXPECT_EQ(used.verdict, Verdict::kProblem);
  EXPECT_THAT(used.found, HasSubstr("all-to-all: rank 2 did not come"));
  EXPECT_EQ(finding(checks_of(report, Transport::kAllgatherReducescatter)).verdict,
            Verdict::kWarning);
}

TEST(DoctorChecks, ABuildThatDiffersIsNamedWithBothHosts) {
  ProbeReport report = sound();
  report.ranks[2].build = "b2";
  const Check check = finding(checks_of(report));
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_THAT(check.found, HasSubstr("rank 0 (host one) has b1, rank 2 (host two) has b2"));
}

TEST(DoctorChecks, MoreThreadsThanCoresAreWarnedOf) {
  ProbeReport report = sound();
  for (RankFacts* it : {&report.ranks[0], &report.ranks[1]}) {
    it->pinned = false;
    it->threads = 5;
  }
  const Check check = finding(checks_of(report));
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_THAT(check.found, HasSubstr("host one: 2 rank(s) x 5 thread(s) on 8 core(s)"));
}

TEST(DoctorChecks, AnOuterMpirunThatLeavesOneCoreIsToldOf) {
  ProbeReport report = sound();
  report.ranks[2].cores = 1;
  EXPECT_THAT(finding(checks_of(report)).advice, HasSubstr("--bind-to none"));
}

TEST(DoctorChecks, SharedMemoryThatIsNotThereIsAProblemAndLittleOfItAWarning) {
  ProbeReport report = sound();
  report.ranks[0].folder_free_bytes = -1;
  EXPECT_EQ(finding(checks_of(report)).verdict, Verdict::kProblem);
  report.ranks[0].folder_free_bytes = 1 << 20;
  const Check little = finding(checks_of(report));
  EXPECT_EQ(little.verdict, Verdict::kWarning);
  EXPECT_THAT(little.advice, HasSubstr("XDG_RUNTIME_DIR"));
}

TEST(DoctorChecks, RanksThatMayNotReadOneAnotherAreSlower) {
  ProbeReport report = sound();
  report.ranks[1].neighbour = MemoryAccess::kForbidden;
  EXPECT_THAT(finding(checks_of(report)).advice, HasSubstr("SYS_PTRACE"));
}

TEST(DoctorChecks, AStartThatFailsSaysWhatMpiSaidWithoutItsFrames) {
  ProbeAnswer answer;
  answer.fault = "no report within 5 s";
  answer.said = "-----------\nA host was unreachable.\n-----------\n";
  const Check check = finding(check_ranks(answer, three(Transport::kAlltoallv), 3));
  EXPECT_EQ(check.verdict, Verdict::kProblem);
  EXPECT_EQ(check.found, "no report within 5 s: A host was unreachable.");
}

TEST(DoctorChecks, AHostThatIsSilentOrHasAnotherBuildIsAProblem) {
  ProbeAnswer answer;
  answer.fault = "did not answer";
  const HostSlots host{.host = "node7", .slots = 4};
  EXPECT_THAT(finding({check_host(host, answer, "b1")}).advice, HasSubstr("ssh node7"));
  answer.here[0] = {.host = "node7", .build = "b2", .met = false};
  EXPECT_THAT(finding({check_host(host, answer, "b1")}).found,
              HasSubstr("has build b2, this is b1"));
  answer.here[0].build = "b1";
  EXPECT_EQ(check_host(host, answer, "b1").verdict, Verdict::kOk);
}

TEST(DoctorChecks, AnMpiThatIsNotTestedIsWarnedOf) {
  EXPECT_EQ(check_mpi_version("mpirun", "mpirun (Open MPI) 4.1.4\n").verdict, Verdict::kOk);
  EXPECT_EQ(check_mpi_version("mpirun", "HYDRA build details").verdict, Verdict::kWarning);
}

TEST(DoctorChecks, OfTheModelEachHostsMemoryIsToldOnce) {
  ProbeReport report = sound();
  for (int rank = 0; rank < 3; ++rank) {
    RankModel& model = report.model.emplace_back();
    model.weight_bytes = kMuch;
    model.available_bytes = 2 * kMuch;
  }
  std::vector<Check> checks = check_model(report);
  EXPECT_EQ(checks.size(), 3u) << "the model, and two hosts";
  EXPECT_EQ(worst(checks), Verdict::kOk);
  report.model[2].available_bytes = kMuch / 2;
  const Check full = finding(check_model(report));
  EXPECT_EQ(full.verdict, Verdict::kWarning);
  EXPECT_THAT(full.found, HasSubstr("host two"));
  report.model_fault = "heads cannot be cut by 3";
  EXPECT_EQ(finding(check_model(report)).found, "heads cannot be cut by 3");
}

}  // namespace
}  // namespace rota
