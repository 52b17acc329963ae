#include "platform/cpu.h"

#include <fmt/format.h>
#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "platform/topology.h"

namespace rota {
namespace {

#if defined(__x86_64__)
struct CpuidLeaf {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidLeaf cpuid(uint32_t leaf, uint32_t subleaf) {
  CpuidLeaf out;
  if (__get_cpuid_count(leaf, subleaf, &out.eax, &out.ebx, &out.ecx, &out.edx) == 0) return {};
  return out;
}

bool bit(uint32_t word, int index) { return ((word >> index) & 1u) != 0; }

// Which register files the operating system saves: XCR0.
uint64_t saved_state() {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

void detect_instructions(CpuFeatures& cpu) {
  const CpuidLeaf leaf1 = cpuid(1, 0);
  const CpuidLeaf leaf7 = cpuid(7, 0);
  const CpuidLeaf leaf7_1 = leaf7.eax >= 1 ? cpuid(7, 1) : CpuidLeaf{};
  const bool osxsave = bit(leaf1.ecx, 27);
  const uint64_t state = osxsave ? saved_state() : 0;
  const bool ymm_saved = (state & 0x6) == 0x6;
  const bool zmm_saved = (state & 0xe6) == 0xe6;

  cpu.avx2 = ymm_saved && bit(leaf1.ecx, 12) /* FMA */ && bit(leaf1.ecx, 28) /* AVX */ &&
             bit(leaf1.ecx, 29) /* F16C */ && bit(leaf7.ebx, 5) /* AVX2 */;
  cpu.avx512 = cpu.avx2 && zmm_saved && bit(leaf7.ebx, 16) /* F */ && bit(leaf7.ebx, 17) /* DQ */ &&
               bit(leaf7.ebx, 30) /* BW */ && bit(leaf7.ebx, 31) /* VL */;
  cpu.avx512_vnni = cpu.avx512 && bit(leaf7.ecx, 11);
  cpu.avx512_bf16 = cpu.avx512 && bit(leaf7_1.eax, 5);
}

std::string brand() {
  if (cpuid(0x80000000u, 0).eax < 0x80000004u) return "unknown CPU";
  std::array<char, 49> text{};
  for (uint32_t i = 0; i < 3; ++i) {
    const CpuidLeaf part = cpuid(0x80000002u + i, 0);
    std::memcpy(text.data() + 16 * i, &part, sizeof(part));
  }
  std::string name(text.data());
  const auto first = name.find_first_not_of(' ');
  const auto last = name.find_last_not_of(' ');
  return first == std::string::npos ? "unknown CPU" : name.substr(first, last - first + 1);
}
#else
void detect_instructions(CpuFeatures&) {}
std::string brand() { return "unknown CPU"; }
#endif

// Whole CPUs that the control group grants (version 2, then 1), or `otherwise`.
int cgroup_cpus(int otherwise) {
  double quota = 0, period = 0;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2 && (v2 >> quota >> period) && period > 0) {
    return std::max(1, static_cast<int>(std::ceil(quota / period)));
  }
  std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (v1_quota && v1_period && (v1_quota >> quota) && (v1_period >> period) && quota > 0 &&
      period > 0) {
    return std::max(1, static_cast<int>(std::ceil(quota / period)));
  }
  return otherwise;
}

UsableCpus find_usable_cpus() {
  UsableCpus out;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) CPU_SET(0, &mask);

  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) == 0) {
    if (hwloc_topology_load(topology) == 0) {
      const int cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
      for (int c = 0; c < cores; ++c) {
        const hwloc_obj_t core =
            hwloc_get_obj_by_type(topology, HWLOC_OBJ_CORE, static_cast<unsigned>(c));
        for (int cpu = hwloc_bitmap_first(core->cpuset); cpu >= 0;
             cpu = hwloc_bitmap_next(core->cpuset, cpu)) {
          if (cpu < CPU_SETSIZE && CPU_ISSET(static_cast<size_t>(cpu), &mask)) {
            out.one_per_core.push_back(cpu);
            break;
          }
        }
      }
    }
    hwloc_topology_destroy(topology);
  }
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &mask)) out.logical.push_back(cpu);
  }
  if (out.one_per_core.empty()) out.one_per_core = out.logical;
  const auto granted = static_cast<size_t>(cgroup_cpus(static_cast<int>(out.logical.size())));
  if (out.logical.size() > granted) out.logical.resize(granted);
  if (out.one_per_core.size() > granted) out.one_per_core.resize(granted);
  return out;
}

}  // namespace

const UsableCpus& usable_cpus() {
  static const UsableCpus found = find_usable_cpus();
  return found;
}

CpuFeatures detect_cpu() {
  CpuFeatures cpu;
  cpu.model_name = brand();
  detect_instructions(cpu);
  cpu.physical_cores = static_cast<int>(usable_cpus().one_per_core.size());
  cpu.logical_cpus = static_cast<int>(usable_cpus().logical.size());
  return cpu;
}

std::string_view to_string(Isa isa) {
  switch (isa) {
    case Isa::kRef:
      return "ref";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

Result<Isa> choose_isa(const CpuFeatures& cpu, const char* forced, std::string_view given_as) {
  const std::string_view wanted = forced == nullptr ? "" : forced;
  if (wanted.empty()) {
    if (cpu.avx512) return Isa::kAvx512;
    if (cpu.avx2) return Isa::kAvx2;
    return Isa::kRef;
  }
  if (wanted == "ref") return Isa::kRef;
  if (wanted == "avx2") {
    if (cpu.avx2) return Isa::kAvx2;
    return error(
        StatusCode::kUnsupported,
        "{}{}: this CPU ({}) or its operating system lacks AVX2, FMA or F16C; leave it out "
        "or use ref",
        given_as, wanted, cpu.model_name);
  }
  if (wanted == "avx512") {
    if (cpu.avx512) return Isa::kAvx512;
    return error(StatusCode::kUnsupported,
                 "{}{}: this CPU ({}) or its operating system lacks AVX-512 F, BW, DQ or VL; leave "
                 "it out or use {}",
                 given_as, wanted, cpu.model_name, cpu.avx2 ? "avx2" : "ref");
  }
  return invalid_argument("{}{}: expected ref, avx2 or avx512", given_as, wanted);
}

std::string describe(const CpuFeatures& cpu) {
  std::string out = cpu.model_name + ": ";
  out += cpu.avx2 ? "AVX2 FMA F16C" : "no AVX2";
  if (cpu.avx512) {
    out += ", AVX-512";
    out += cpu.avx512_bf16 ? " BF16" : " (no BF16 dot product)";
    if (cpu.avx512_vnni) out += " VNNI";
  } else {
    out += ", no AVX-512 (F, BW, DQ and VL are needed)";
  }
  return out +
         fmt::format("; {} cores, {} logical CPUs usable", cpu.physical_cores, cpu.logical_cpus);
}

bool pin_this_thread(int cpu) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(static_cast<size_t>(cpu), &mask);
  return sched_setaffinity(0, sizeof(mask), &mask) == 0;
}

}  // namespace rota
