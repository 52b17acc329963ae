// The kernels of one instruction set: a table of plain functions with the same contracts for every
// ISA. ref is scalar and the oracle; the others are tested against it. A kernel works on the part
// of the work it is given, in the calling thread; the caller splits work over a ThreadTeam.
//
//   const KernelTable& kernels = kernels_for(isa, cpu);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/mamba2.h"
#include "kernels/matmul.h"
#include "platform/cpu.h"
#include "tensor/matrix.h"

namespace rota {

struct RmsNormArgs {
  MatrixView<const float> x;     // [T, H]
  const Bf16* weight = nullptr;  // [H]
  float eps = 0;
  MatrixView<float> out;  // [T, H] may be x itself
};

struct RotateArgs {
  float* x =
      nullptr;  // [tokens, heads * head_dim] with stride, rotated in place; pairs are (i, i + d/2)
  int64_t stride = 0;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  const float* cos = nullptr;  // [tokens, head_dim / 2], the attention factor included
  const float* sin = nullptr;
};

// gpt-oss: gate and up interleaved. g = min(gate, limit), u = clamp(up, -limit, limit);
// out = (u + 1) * g * sigmoid(alpha * g)
struct SwigluOaiArgs {
  MatrixView<const float> gate_up;  // [T, 2I]
  float alpha = 1.702f;
  float limit = 7.0f;
  MatrixView<float> out;  // [T, I]
};

struct SiluMulArgs {
  MatrixView<const float> gate;  // [T, I]
  MatrixView<const float> up;    // [T, I]
  MatrixView<float> out;         // [T, I] may be gate or up
};

struct KernelTable {
  Isa isa;
  bool bf16_dot;     // Compute::kBf16 uses the BF16 dot product
  const char* name;  // "ref", "avx2", "avx512", "avx512_bf16"

  // Matmul, see matmul.h.
  InputLayout (*input_layout)(const WeightMatrix& weights, Compute compute);
  // Row i of `prepared` is x's row rows[i] (all rows of x in order when `rows` is empty). prepared
  // holds tokens * layout.token_stride bytes. Reads logical columns only and supplies zeros up to
  // in.padded().
  PreparedInput (*prepare_input)(MatrixView<const float> x, std::span<const int32_t> rows,
                                 Extent in, InputLayout layout, Compute compute,
                                 std::byte* prepared);
  int64_t (*column_granularity)(const WeightMatrix& weights, Compute compute);
  Bytes (*matmul_scratch_bytes)(Extent max_in);
  void (*matmul)(const MatmulArgs& args);

  // Attention, see attention.h.
  Bytes (*kv_page_bytes)(const KvShape& shape);  // one layer, keys and values
  Bytes (*attend_scratch_bytes)(const KvShape& shape, int64_t query_heads);
  void (*store_kv)(const StoreKvArgs& args);
  void (*attend)(const AttendArgs& args);

  // Row-wise and element-wise. Each row's result depends on that row alone.
  void (*rms_norm)(const RmsNormArgs& args);
  void (*rotate)(const RotateArgs& args);
  void (*swiglu_oai)(const SwigluOaiArgs& args);
  void (*silu_mul)(const SiluMulArgs& args);
  void (*relu2)(MatrixView<const float> x,
                MatrixView<float> out);  // max(x, 0)^2; out may be x
  void (*add)(MatrixView<float> into,
              MatrixView<const float> what);  // into += what, logical columns
  // out += scale * what, one row: the combine's weighted sum, each product rounded, then added.
  void (*add_scaled)(std::span<float> out, float scale, std::span<const float> what);
  void (*bf16_to_float)(std::span<const Bf16> in, std::span<float> out);
  void (*softmax)(std::span<float> row);  // in place, max subtracted

  // Mamba2, see mamba2.h.
  void (*causal_conv)(const CausalConvArgs& args);
  void (*ssm_scan)(const SsmScanArgs& args);
  void (*gated_norm)(const GatedNormArgs& args);
};

// The table of an ISA on this CPU (features decide whether the BF16 dot product is used). Asking
// for an ISA that the CPU lacks is our bug: choose_isa() has refused it before.
// Built with ROTA_EMULATE_AVX512, kAvx512 on a CPU without AVX-512 is the emulation.
const KernelTable& kernels_for(Isa isa, const CpuFeatures& cpu);

// Every table this CPU can run, ref first, emulated ones last: what a test goes through.
std::vector<const KernelTable*> available_kernels(const CpuFeatures& cpu);

}  // namespace rota
