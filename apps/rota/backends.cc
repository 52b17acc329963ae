// rota backends: everything that could run, what this machine can run, and why not.
#include <cstdio>
#include <cstdlib>

#include "kernels/kernels.h"
#include "moe/select_backend.h"
#include "moe/width_plan.h"
#include "platform/cpu.h"
#include "rota/command.h"

namespace rota {
namespace {

Status list_backends() {
  const CpuFeatures cpu = detect_cpu();
  ROTA_ASSIGN_OR_RETURN(const Isa isa, choose_isa(cpu, std::getenv("ROTA_ISA")));
  std::printf("CPU       %s, %d cores\n          %s\n", cpu.model_name.c_str(), cpu.physical_cores,
              describe(cpu).c_str());
  std::printf("\nKernels (ROTA_ISA forces one)\n");
  for (const Isa one : {Isa::kRef, Isa::kAvx2, Isa::kAvx512}) {
    const std::string name(to_string(one));
    const Result<Isa> can = choose_isa(cpu, name.c_str());
    std::printf("  %-16s %s\n", can.ok() ? kernels_for(one, cpu).name : name.c_str(),
                !can.ok()    ? can.status().message().c_str()
                : one == isa ? "yes, in use"
                             : "yes");
  }
  std::printf("\nExperts backends, fastest first (--moe-backend asks for one)\n");
  const BackendContext context{.cpu = cpu, .isa = isa, .compute = Compute::kBf16};
  for (const ExpertsBackend* backend : experts_backends()) {
    const auto refusal = backend->refuse_machine(context);
    const std::string answer = refusal.value_or("yes");
    const std::string note = refusal ? "" : backend->only_by_name().value_or("");
    std::printf("  %-16s %s%s%s\n", std::string(backend->name()).c_str(), answer.c_str(),
                note.empty() ? "" : ", ", note.c_str());
  }
  std::printf("\nPrepare/finalize\n  %-16s yes\n",
              std::string(to_string(Transport::kNoDpEp)).c_str());
  return {};
}

}  // namespace

CommandRun add_backends(CLI::App& app) {
  app.add_subcommand("backends", "what this machine can run, and why not the rest");
  return list_backends;
}

}  // namespace rota
