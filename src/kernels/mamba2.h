// The parts of a Mamba2 block between its projections: causal convolution, selective state space
// recurrence, gated norm (arXiv 2405.21060, in its recurrent form).
//
// Contract: a token's result depends on its sequence's earlier tokens and the ISA alone. The states
// carry what came before, so a sequence cut into chunks in any way gets the same bits.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/matrix.h"

namespace rota {

// out[t] = silu(bias + sum over j of weight[j] * x[t - (kernel - 1) + j]), each channel on its own.
struct CausalConvArgs {
  MatrixView<const float> x;  // [T, C], T consecutive tokens
  int64_t kernel = 0;         // at least 2
  const float* weight =
      nullptr;  // weight[j * weight_stride + c]: [kernel, C], the newest input last
  int64_t weight_stride = 0;
  const float* bias = nullptr;  // [C]
  float* state = nullptr;       // [kernel - 1, C], stride state_stride: the inputs before x, then
  int64_t state_stride = 0;     // the last ones of both, oldest first
  MatrixView<float> out;        // [T, C], not x
};

// One head over T tokens. With step = softplus(dt + dt_bias), for each token
//   state[n][p] = state[n][p] * exp(step * a) + step * x[p] * b[n]
//   y[p] = sum over n of state[n][p] * c[n] + d * x[p]
struct SsmScanArgs {
  MatrixView<const float> x;  // [T, P], P: the head's dimension
  MatrixView<const float> b;  // [T, N], N: the state's size
  MatrixView<const float> c;  // [T, N]
  const float* dt = nullptr;  // dt[t * dt_stride]
  int64_t dt_stride = 0;
  float dt_bias = 0;
  float a = 0;             // -exp(A_log)
  float d = 0;             // D
  float* state = nullptr;  // [N, P]
  MatrixView<float> y;     // [T, P], may be x
};

// g = y * silu(z); out = g / rms(g) * weight, the rms over each group of `group` columns.
struct GatedNormArgs {
  MatrixView<const float> y;     // [T, W]
  MatrixView<const float> z;     // [T, W]
  const Bf16* weight = nullptr;  // [W]
  int64_t group = 0;             // divides W
  float eps = 0;
  MatrixView<float> out;  // [T, W], may be y
};

}  // namespace rota
