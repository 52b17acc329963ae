// Activations, scalar: each element in double, rounded once.
#include <algorithm>
#include <cmath>

#include "kernels/ref/ref_kernels.h"

namespace rota::ref {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace

void swiglu_oai(const SwigluOaiArgs& args) {
  const int64_t width = args.out.width().logical();
  for (int64_t t = 0; t < args.out.rows(); ++t) {
    const float* gate_up = args.gate_up.row(t).data();
    float* out = args.out.row(t).data();
    for (int64_t i = 0; i < width; ++i) {
      const double gate = std::min(gate_up[2 * i], args.limit);
      const double up = std::clamp(gate_up[2 * i + 1], -args.limit, args.limit);
      out[i] = static_cast<float>((up + 1.0) * gate * sigmoid(double{args.alpha} * gate));
    }
  }
}

void silu_mul(const SiluMulArgs& args) {
  const int64_t width = args.out.width().logical();
  for (int64_t t = 0; t < args.out.rows(); ++t) {
    const float* gates = args.gate.row(t).data();
    const float* ups = args.up.row(t).data();
    float* out = args.out.row(t).data();
    for (int64_t i = 0; i < width; ++i) {
      const double gate = gates[i];
      out[i] = static_cast<float>(gate * sigmoid(gate) * double{ups[i]});
    }
  }
}

void relu2(MatrixView<const float> x, MatrixView<float> out) {
  const int64_t width = out.width().logical();
  for (int64_t t = 0; t < out.rows(); ++t) {
    const float* in = x.row(t).data();
    float* squares = out.row(t).data();
    for (int64_t i = 0; i < width; ++i) {
      const float positive = in[i] < 0 ? 0.0f : in[i];
      squares[i] = positive * positive;
    }
  }
}

}  // namespace rota::ref
