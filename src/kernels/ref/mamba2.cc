// Mamba2's convolution, recurrence and gated norm, scalar: each element in double, rounded once.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/ref/ref_kernels.h"

namespace rota::ref {
namespace {

double silu(double x) { return x / (1.0 + std::exp(-x)); }

double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

// The input `back` tokens before token t, from x or from the state.
const float* input(const CausalConvArgs& args, int64_t t, int64_t back) {
  if (t >= back) return args.x.data() + (t - back) * args.x.stride();
  return args.state + (args.kernel - 1 + t - back) * args.state_stride;
}

// One row of the recurrence: a token's element p of the head, through its whole state.
double step_element(const SsmScanArgs& args, int64_t t, int64_t p, double step, double decay) {
  const int64_t width = args.x.width().logical();
  const double scaled = step * double{args.x.row(t)[static_cast<size_t>(p)]};
  double sum = 0;
  for (int64_t n = 0; n < args.b.width().logical(); ++n) {
    float& state = args.state[n * width + p];
    state = static_cast<float>(double{state} * decay + scaled * double{args.b.row(t).data()[n]});
    sum += double{state} * double{args.c.row(t).data()[n]};
  }
  return sum;
}

void norm_group(float* g, const Bf16* weight, int64_t width, float eps) {
  double squares = 0;
  for (int64_t i = 0; i < width; ++i) squares += double{g[i]} * double{g[i]};
  const double mean = squares / static_cast<double>(width);
  const auto inverse = static_cast<float>(1.0 / std::sqrt(mean + double{eps}));
  for (int64_t i = 0; i < width; ++i) g[i] = g[i] * inverse * to_float(weight[i]);
}

}  // namespace

void causal_conv(const CausalConvArgs& args) {
  const int64_t channels = args.x.width().logical();
  const int64_t tokens = args.x.rows();
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < channels; ++c) {
      double sum = args.bias[c];
      for (int64_t j = 0; j < args.kernel; ++j) {
        sum += double{args.weight[j * args.weight_stride + c]} *
               double{input(args, t, args.kernel - 1 - j)[c]};
      }
      args.out.row(t)[static_cast<size_t>(c)] = static_cast<float>(silu(sum));
    }
  }
  // Oldest first: each row that is read is behind those that were written.
  for (int64_t i = 0; i < args.kernel - 1; ++i) {
    std::memmove(args.state + i * args.state_stride, input(args, tokens, args.kernel - 1 - i),
                 static_cast<size_t>(channels) * sizeof(float));
  }
}

void ssm_scan(const SsmScanArgs& args) {
  for (int64_t t = 0; t < args.x.rows(); ++t) {
    const double step = softplus(double{args.dt[t * args.dt_stride]} + double{args.dt_bias});
    const double decay = std::exp(step * double{args.a});
    for (int64_t p = 0; p < args.x.width().logical(); ++p) {
      const double x = args.x.row(t)[static_cast<size_t>(p)];
      const double y = step_element(args, t, p, step, decay) + double{args.d} * x;
      args.y.row(t)[static_cast<size_t>(p)] = static_cast<float>(y);
    }
  }
}

void gated_norm(const GatedNormArgs& args) {
  const int64_t width = args.y.width().logical();
  for (int64_t t = 0; t < args.y.rows(); ++t) {
    const float* y = args.y.row(t).data();
    const float* z = args.z.row(t).data();
    float* out = args.out.row(t).data();
    for (int64_t i = 0; i < width; ++i) out[i] = static_cast<float>(double{y[i]} * silu(z[i]));
    for (int64_t i = 0; i < width; i += args.group) {
      norm_group(out + i, args.weight + i, args.group, args.eps);
    }
  }
}

}  // namespace rota::ref
