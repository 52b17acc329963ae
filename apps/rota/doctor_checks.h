// What `rota doctor` concludes of what was found. Pure: from answers of ranks to lines for people.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/parallel_choice.h"
#include "engine/probe.h"
#include "supervisor/hostfile.h"
#include "supervisor/probe_launch.h"

namespace rota {

enum class Verdict { kOk, kWarning, kProblem };

struct Check {
  std::string name;  // "shared memory"
  Verdict verdict = Verdict::kOk;
  std::string found = {};
  std::string advice = {};  // what to do; empty where it is ok
};

// version: what `mpirun --version` has said.
Check check_mpi_version(const std::string& path, const std::string& version);

// here: of the build that asks.
Check check_host(const HostSlots& host, const ProbeAnswer& answer, const std::string& build);

// The start of all ranks, and if they have met, all that they have found of the machines.
std::vector<Check> check_ranks(const ProbeAnswer& answer, const ParallelChoice& parallel,
                               int ranks);

// Of the model; nothing where none was asked of.
std::vector<Check> check_model(const ProbeReport& report);

Verdict worst(std::span<const Check> checks);

}  // namespace rota
