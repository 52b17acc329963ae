#include "supervisor/mpi_launch.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace rota {
namespace {

// An mpirun around this process told it whom it belongs to: the one inside must not believe that.
constexpr std::array<std::string_view, 12> kOfOuterJob = {"PMIX_",
                                                          "PMI_",
                                                          "OMPI_COMM_WORLD_",
                                                          "OMPI_UNIVERSE_SIZE=",
                                                          "OMPI_APP_CTX_NUM_PROCS=",
                                                          "OMPI_FIRST_RANKS=",
                                                          "OMPI_NUM_APP_CTX=",
                                                          "OMPI_COMMAND=",
                                                          "OMPI_ARGV=",
                                                          "OMPI_FILE_LOCATION=",
                                                          "OMPI_MCA_ess",
                                                          "OMPI_MCA_orte_"};
// A scheduler's allocation, of perhaps several hosts, which mpirun finds by itself.
constexpr std::array<std::string_view, 3> kAllocations = {
    "SLURM_JOB_ID=", "PBS_JOBID=", "LSB_JOBID="};
// What ranks on other hosts need of this process's variables, beside MPI's own.
constexpr std::array<std::string_view, 4> kExported = {"ROTA_", "HF_", "PATH=", "LD_LIBRARY_PATH="};

template <size_t kCount>
bool starts_with_any(std::string_view text,
                     const std::array<std::string_view, kCount>& beginnings) {
  return std::ranges::any_of(beginnings, [&](auto it) { return text.starts_with(it); });
}

class Variables {
 public:
  explicit Variables(const std::vector<std::string>& outer) {
    for (const std::string& it : outer) {
      if (!starts_with_any(it, kOfOuterJob)) all_.push_back(it);
    }
  }
  void set(const std::string& name, const std::string& value) {
    std::erase_if(all_, [&](const std::string& it) { return it.starts_with(name + "="); });
    all_.push_back(name + "=" + value);
  }
  // Unless the user has.
  void propose(const std::string& name, const std::string& value) {
    const bool there = std::ranges::any_of(
        all_, [&](const std::string& it) { return it.starts_with(name + "="); });
    if (!there) set(name, value);
  }
  std::vector<std::string> take() { return std::move(all_); }

 private:
  std::vector<std::string> all_;
};

bool on_this_host(const MpiLaunch& launch) {
  return launch.hostfile.empty() &&
         std::ranges::none_of(launch.environment, [](const std::string& it) {
           return starts_with_any(it, kAllocations);
         });
}

std::vector<std::string> command_of(const MpiLaunch& launch) {
  std::vector<std::string> words = {launch.mpirun, "-n", std::to_string(launch.ranks), "--bind-to",
                                    "none"};
  if (launch.root) words.emplace_back("--allow-run-as-root");
  if (on_this_host(launch) && launch.ranks > launch.cores) words.emplace_back("--oversubscribe");
  if (!launch.hostfile.empty()) {
    words.insert(words.end(), {"--hostfile", launch.hostfile});
    for (const std::string& it : launch.environment) {
      if (starts_with_any(it, kExported)) {
        words.insert(words.end(), {"-x", it.substr(0, it.find('='))});
      }
    }
  }
  words.insert(words.end(), launch.command.begin(), launch.command.end());
  return words;
}

std::vector<std::string> environment_of(const MpiLaunch& launch) {
  Variables variables(launch.environment);
  variables.set("OMPI_MCA_orte_tmpdir_base", launch.run_folder);
  variables.set("OMPI_MCA_btl_vader_backing_directory", launch.run_folder);
  variables.set("OMPI_MCA_osc_sm_backing_directory", launch.run_folder);
  if (!launch.reads_memory) {
    variables.propose("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
  }
  if (!on_this_host(launch)) {
    // osc/ucx takes windows for itself also where UCX finds no network, and then fails to make one.
    variables.propose("OMPI_MCA_osc", "^ucx");
    return variables.take();
  }
  variables.propose("OMPI_MCA_pml", "ob1");
  variables.propose("OMPI_MCA_btl", "self,vader");
  // Nobody is to be reached: mpirun need not find ssh.
  variables.propose("OMPI_MCA_plm_rsh_agent", "false");
  if (launch.ranks > launch.cores) variables.propose("OMPI_MCA_mpi_yield_when_idle", "1");
  return variables.take();
}

}  // namespace

MpiCommand mpi_command(const MpiLaunch& launch) {
  return {.command = command_of(launch), .environment = environment_of(launch)};
}

}  // namespace rota
