// What this CPU can run, and which of it we use.
//
//   ROTA_ASSIGN_OR_RETURN(Isa isa, choose_isa(detect_cpu(), std::getenv("ROTA_ISA")));
//
// choose_isa() takes the best set the CPU has; ROTA_ISA=ref|avx2|avx512 forces one, and forcing one
// that the CPU lacks is an error that says what is missing.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace rota {

enum class Isa { kRef, kAvx2, kAvx512 };

struct CpuFeatures {
  std::string model_name;
  bool avx2 = false;         // AVX2 + FMA + F16C
  bool avx512 = false;       // F + BW + DQ + VL + VBMI is not asked for
  bool avx512_bf16 = false;  // the BF16 dot product
  bool avx512_vnni = false;
  int physical_cores = 1;
  int logical_cpus = 1;  // those this process may run on (affinity, cgroup)
};

// Asks cpuid and xgetbv: a feature counts only if the operating system saves its registers.
CpuFeatures detect_cpu();

std::string_view to_string(Isa isa);

// `forced` may be null or empty: the best available. `given_as` is what the user wrote, for messages:
// "ROTA_ISA=avx2", "--isa avx2".
Result<Isa> choose_isa(const CpuFeatures& cpu, const char* forced,
                       std::string_view given_as = "ROTA_ISA=");

// "AVX2 FMA; no AVX-512: ..." for start-up logs and `rota backends`.
std::string describe(const CpuFeatures& cpu);

}  // namespace rota
