#include "supervisor/mpi_launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rota {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

MpiLaunch launch() {
  return {.ranks = 4,
          .mpirun = "/usr/bin/mpirun",
          .command = {"/opt/rota", "engine-rank"},
          .run_folder = "/run/user/1/rota-x",
          .cores = 8,
          .environment = {"HOME=/home/me", "PATH=/bin", "ROTA_ISA=avx2"}};
}

TEST(MpiLaunch, OnOneHostWithCoresForAll) {
  const MpiCommand mpi = mpi_command(launch());
  EXPECT_THAT(mpi.command, ElementsAre("/usr/bin/mpirun", "-n", "4", "--bind-to", "none",
                                       "/opt/rota", "engine-rank"));
  EXPECT_THAT(mpi.environment,
              IsSupersetOf({"HOME=/home/me", "OMPI_MCA_orte_tmpdir_base=/run/user/1/rota-x",
                            "OMPI_MCA_btl_vader_backing_directory=/run/user/1/rota-x",
                            "OMPI_MCA_osc_sm_backing_directory=/run/user/1/rota-x",
                            "OMPI_MCA_btl=self,vader", "OMPI_MCA_plm_rsh_agent=false"}));
  EXPECT_THAT(mpi.environment, Not(Contains(HasSubstr("yield"))));
  EXPECT_THAT(mpi.environment, Not(Contains(HasSubstr("single_copy"))));
}

TEST(MpiLaunch, MoreRanksThanCoresYield) {
  MpiLaunch many = launch();
  many.cores = 2;
  const MpiCommand mpi = mpi_command(many);
  EXPECT_THAT(mpi.command, Contains("--oversubscribe"));
  EXPECT_THAT(mpi.environment, Contains("OMPI_MCA_mpi_yield_when_idle=1"));
}

TEST(MpiLaunch, RootAndContainersAreSaid) {
  MpiLaunch boxed = launch();
  boxed.root = true;
  boxed.reads_memory = false;
  const MpiCommand mpi = mpi_command(boxed);
  EXPECT_THAT(mpi.command, Contains("--allow-run-as-root"));
  EXPECT_THAT(mpi.environment, Contains("OMPI_MCA_btl_vader_single_copy_mechanism=none"));
}

TEST(MpiLaunch, OnSeveralHostsTheTransportIsMpisChoiceAndVariablesTravel) {
  MpiLaunch hosts = launch();
  hosts.hostfile = "hosts.txt";
  hosts.cores = 2;  // of this one: says nothing of the others
  const MpiCommand mpi = mpi_command(hosts);
  EXPECT_THAT(mpi.command,
              ElementsAre("/usr/bin/mpirun", "-n", "4", "--bind-to", "none", "--hostfile",
                          "hosts.txt", "-x", "PATH", "-x", "ROTA_ISA", "/opt/rota", "engine-rank"));
  EXPECT_THAT(mpi.environment, Not(Contains(HasSubstr("OMPI_MCA_btl="))));
  EXPECT_THAT(mpi.environment, Not(Contains(HasSubstr("plm_rsh_agent"))));
  // Found with low_latency over TCP: "MPI_Win_allocate: MPI_ERR_WIN".
  EXPECT_THAT(mpi.environment, Contains("OMPI_MCA_osc=^ucx"));
  hosts.environment.emplace_back("OMPI_MCA_osc=ucx");
  EXPECT_THAT(mpi_command(hosts).environment, Not(Contains("OMPI_MCA_osc=^ucx")));
}

TEST(MpiLaunch, AnAllocationIsNotOneHost) {
  MpiLaunch slurm = launch();
  slurm.cores = 2;
  slurm.environment.emplace_back("SLURM_JOB_ID=7");
  const MpiCommand mpi = mpi_command(slurm);
  EXPECT_THAT(mpi.command, Not(Contains("--oversubscribe")));
  EXPECT_THAT(mpi.environment, Not(Contains(HasSubstr("OMPI_MCA_btl="))));
}

TEST(MpiLaunch, TheUsersOwnSettingsStayAndThoseOfAnOuterJobGo) {
  MpiLaunch inside = launch();
  inside.environment.insert(
      inside.environment.end(),
      {"OMPI_MCA_btl=self,tcp", "OMPI_MCA_orte_tmpdir_base=/tmp", "OMPI_COMM_WORLD_RANK=0",
       "PMIX_RANK=0", "OMPI_MCA_ess_base_jobid=3", "OMPI_MCA_orte_hnp_uri=x"});
  const std::vector<std::string> variables = mpi_command(inside).environment;
  EXPECT_THAT(variables, Contains("OMPI_MCA_btl=self,tcp"));
  EXPECT_THAT(variables, Not(Contains("OMPI_MCA_btl=self,vader")));
  EXPECT_THAT(variables, Contains("OMPI_MCA_orte_tmpdir_base=/run/user/1/rota-x"));
  for (const char* gone : {"OMPI_COMM_WORLD", "PMIX_", "ess_base", "hnp_uri", "base=/tmp"}) {
    EXPECT_THAT(variables, Not(Contains(HasSubstr(gone))));
  }
}

}  // namespace
}  // namespace rota
