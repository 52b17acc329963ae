// The AVX2 + FMA kernels. Their sources are compiled with those flags, nothing else is.
// The contracts are those of KernelTable (kernels/kernels.h), which kernels.cc fills with them.
#pragma once

#include "kernels/kernels.h"

namespace rota::avx2 {

// matmul.cc
InputLayout input_layout(const WeightMatrix& weights, Compute compute);
PreparedInput prepare_input(MatrixView<const float> x, std::span<const int32_t> rows, Extent in,
                            InputLayout layout, Compute compute, std::byte* prepared);
int64_t column_granularity(const WeightMatrix& weights, Compute compute);
Bytes matmul_scratch_bytes(Extent max_in);
void matmul(const MatmulArgs& args);

// attention.cc
Bytes kv_page_bytes(const KvShape& shape);
Bytes attend_scratch_bytes(const KvShape& shape, int64_t query_heads);
void store_kv(const StoreKvArgs& args);
void attend(const AttendArgs& args);

// rows.cc
void rms_norm(const RmsNormArgs& args);
void rotate(const RotateArgs& args);
void swiglu_oai(const SwigluOaiArgs& args);
void silu_mul(const SiluMulArgs& args);
void relu2(MatrixView<const float> x, MatrixView<float> out);
void add(MatrixView<float> into, MatrixView<const float> what);
void add_scaled(std::span<float> out, float scale, std::span<const float> what);
void bf16_to_float(std::span<const Bf16> in, std::span<float> out);
void softmax(std::span<float> row);

// mamba2.cc
void causal_conv(const CausalConvArgs& args);
void ssm_scan(const SsmScanArgs& args);
void gated_norm(const GatedNormArgs& args);

}  // namespace rota::avx2
