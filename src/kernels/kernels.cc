#include "kernels/kernels.h"

#include "base/check.h"
#include "kernels/avx2/avx2_kernels.h"
#include "kernels/avx512/avx512_kernels.h"
#include "kernels/ref/ref_kernels.h"

// The functions that both matmul variants of an ISA share, in the table's order.
#define ROTA_ROW_KERNELS(ns)                                                                      \
  .kv_page_bytes = ns::kv_page_bytes, .attend_scratch_bytes = ns::attend_scratch_bytes,           \
  .store_kv = ns::store_kv, .attend = ns::attend, .rms_norm = ns::rms_norm, .rotate = ns::rotate, \
  .swiglu_oai = ns::swiglu_oai, .silu_mul = ns::silu_mul, .relu2 = ns::relu2, .add = ns::add,     \
  .add_scaled = ns::add_scaled, .bf16_to_float = ns::bf16_to_float, .softmax = ns::softmax,       \
  .causal_conv = ns::causal_conv, .ssm_scan = ns::ssm_scan, .gated_norm = ns::gated_norm

#define ROTA_MATMUL_KERNELS(ns, suffix)                                                           \
  .input_layout = ns::input_layout##suffix, .prepare_input = ns::prepare_input,                   \
  .column_granularity = ns::column_granularity, .matmul_scratch_bytes = ns::matmul_scratch_bytes, \
  .matmul = ns::matmul##suffix

namespace rota {
namespace {

constexpr KernelTable kRef{.isa = Isa::kRef,
                           .bf16_dot = false,
                           .name = "ref",
                           ROTA_MATMUL_KERNELS(ref, ),
                           ROTA_ROW_KERNELS(ref)};

constexpr KernelTable kAvx2{.isa = Isa::kAvx2,
                            .bf16_dot = false,
                            .name = "avx2",
                            ROTA_MATMUL_KERNELS(avx2, ),
                            ROTA_ROW_KERNELS(avx2)};

constexpr KernelTable kAvx512{.isa = Isa::kAvx512,
                              .bf16_dot = false,
                              .name = "avx512",
                              ROTA_MATMUL_KERNELS(avx512, ),
                              ROTA_ROW_KERNELS(avx512)};

constexpr KernelTable kAvx512Bf16{.isa = Isa::kAvx512,
                                  .bf16_dot = true,
                                  .name = "avx512_bf16",
                                  ROTA_MATMUL_KERNELS(avx512, _bf16),
                                  ROTA_ROW_KERNELS(avx512)};

#ifdef ROTA_EMULATE_AVX512
constexpr KernelTable kEmulated{.isa = Isa::kAvx512,
                                .bf16_dot = false,
                                .name = "avx512_emulated",
                                ROTA_MATMUL_KERNELS(avx512_emulated, ),
                                ROTA_ROW_KERNELS(avx512_emulated)};

constexpr KernelTable kEmulatedBf16{.isa = Isa::kAvx512,
                                    .bf16_dot = true,
                                    .name = "avx512_bf16_emulated",
                                    ROTA_MATMUL_KERNELS(avx512_emulated, _bf16),
                                    ROTA_ROW_KERNELS(avx512_emulated)};
#endif

// The table with the dot products takes both: no CPU has the BF16 one without the 8-bit one.
bool has_dots(const CpuFeatures& cpu) { return cpu.avx512_bf16 && cpu.avx512_vnni; }

const KernelTable& avx512_table(const CpuFeatures& cpu) {
#ifdef ROTA_EMULATE_AVX512
  if (!cpu.avx512) return kEmulatedBf16;
#endif
  ROTA_CHECK(cpu.avx512, "AVX-512 kernels on a CPU without AVX-512");
  return has_dots(cpu) ? kAvx512Bf16 : kAvx512;
}

}  // namespace

const KernelTable& kernels_for(Isa isa, const CpuFeatures& cpu) {
  if (isa == Isa::kRef) return kRef;
  if (isa == Isa::kAvx512) return avx512_table(cpu);
  ROTA_CHECK(cpu.avx2, "AVX2 kernels on a CPU without AVX2");
  return kAvx2;
}

std::vector<const KernelTable*> available_kernels(const CpuFeatures& cpu) {
  std::vector<const KernelTable*> tables{&kRef};
  if (cpu.avx2) tables.push_back(&kAvx2);
  if (cpu.avx512) tables.push_back(&kAvx512);
  if (has_dots(cpu)) tables.push_back(&kAvx512Bf16);
#ifdef ROTA_EMULATE_AVX512
  if (cpu.avx2 && !cpu.avx512) tables.push_back(&kEmulated);
  if (cpu.avx2 && !has_dots(cpu)) tables.push_back(&kEmulatedBf16);
#endif
  return tables;
}

std::string_view to_string(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBf16:
      return "BF16";
    case WeightFormat::kFloat32:
      return "float32";
    case WeightFormat::kMxfp4:
      return "MXFP4";
    case WeightFormat::kFp8:
      return "FP8";
    case WeightFormat::kNvfp4:
      return "NVFP4";
  }
  return "unknown";
}

}  // namespace rota
