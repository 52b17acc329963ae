// Mamba2's kernels (kernels/mamba2.h) over an ISA's vectors `L`: written once, compiled for each
// ISA, internal to the source that includes it (see lanes/math.h).
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/kernels.h"
#include "kernels/lanes/math.h"
#include "kernels/lanes/rows.h"

namespace rota::lanes {
namespace {

// The input `back` tokens before token t, from x or from the state.
const float* conv_input(const CausalConvArgs& args, int64_t t, int64_t back) {
  if (t >= back) return args.x.data() + (t - back) * args.x.stride();
  return args.state + (args.kernel - 1 + t - back) * args.state_stride;
}

template <class L>
void causal_conv(const CausalConvArgs& args) {
  const int64_t channels = args.x.width().logical();
  const int64_t tokens = args.x.rows();
  for (int64_t t = 0; t < tokens; ++t) {
    float* out = args.out.data() + t * args.out.stride();
    for_each_vector<L>(channels, [&](int64_t c, auto part) {
      auto sum = part.load(args.bias + c);
      for (int64_t j = 0; j < args.kernel; ++j) {
        const auto weight = part.load(args.weight + j * args.weight_stride + c);
        sum = L::fma(weight, part.load(conv_input(args, t, args.kernel - 1 - j) + c), sum);
      }
      part.store(out + c, L::mul(sum, sigmoid<L>(sum)));
    });
  }
  // Oldest first: each row that is read is behind those that were written.
  for (int64_t i = 0; i < args.kernel - 1; ++i) {
    std::memmove(args.state + i * args.state_stride, conv_input(args, tokens, args.kernel - 1 - i),
                 static_cast<size_t>(channels) * sizeof(float));
  }
}

// log(1 + e^x)
template <class L>
float softplus(float x) {
  const float e = exp_of_nonpositive<L>(x < 0 ? x : -x);
  return (x > 0 ? x : 0.0f) + __builtin_log1pf(e);
}

// kVectors vectors of a head's columns from `first` on, all tokens: their state [N, columns] stays
// in the first-level cache. The sums run side by side; each is over n in order.
template <class L, int kVectors, class Part>
void scan_columns(const SsmScanArgs& args, int64_t first, Part part) {
  using Vec = typename L::Vec;
  const int64_t head_dim = args.x.width().logical();
  const int64_t size = args.b.width().logical();
  for (int64_t t = 0; t < args.x.rows(); ++t) {
    const float* x = args.x.data() + t * args.x.stride() + first;
    const float* b = args.b.data() + t * args.b.stride();
    const float* c = args.c.data() + t * args.c.stride();
    float* y = args.y.data() + t * args.y.stride() + first;
    const float step = softplus<L>(args.dt[t * args.dt_stride] + args.dt_bias);
    const Vec decay = L::broadcast(exp_of_nonpositive<L>(step * args.a));
    Vec scaled[kVectors];
    Vec sums[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      scaled[v] = L::mul(L::broadcast(step), part.load(x + v * L::kCount));
      sums[v] = L::zero();
    }
    for (int64_t n = 0; n < size; ++n) {
      float* state = args.state + n * head_dim + first;
      const Vec in = L::broadcast(b[n]);
      const Vec out = L::broadcast(c[n]);
      for (int v = 0; v < kVectors; ++v) {
        const Vec kept = L::mul(part.load(state + v * L::kCount), decay);
        const Vec updated = L::fma(scaled[v], in, kept);
        part.store(state + v * L::kCount, updated);
        sums[v] = L::fma(updated, out, sums[v]);
      }
    }
    const Vec d = L::broadcast(args.d);
    for (int v = 0; v < kVectors; ++v) {
      part.store(y + v * L::kCount, L::fma(d, part.load(x + v * L::kCount), sums[v]));
    }
  }
}

template <class L>
void ssm_scan(const SsmScanArgs& args) {
  constexpr int kSideBySide = 4;
  const int64_t head_dim = args.x.width().logical();
  int64_t first = 0;
  for (; first + kSideBySide * L::kCount <= head_dim; first += kSideBySide * L::kCount) {
    scan_columns<L, kSideBySide>(args, first, AllLanes<L>{});
  }
  for (; first + L::kCount <= head_dim; first += L::kCount) {
    scan_columns<L, 1>(args, first, AllLanes<L>{});
  }
  if (first < head_dim) scan_columns<L, 1>(args, first, FirstLanes<L>{head_dim - first});
}

template <class L>
void gated_norm(const GatedNormArgs& args) {
  const int64_t width = args.y.width().logical();
  for (int64_t t = 0; t < args.y.rows(); ++t) {
    const float* y = args.y.data() + t * args.y.stride();
    const float* z = args.z.data() + t * args.z.stride();
    float* out = args.out.data() + t * args.out.stride();
    for_each_vector<L>(width, [&](int64_t i, auto part) {
      const auto gate = part.load(z + i);
      const auto silu = L::mul(gate, sigmoid<L>(gate));
      part.store(out + i, L::mul(part.load(y + i), silu));
    });
    for (int64_t group = 0; group < width; group += args.group) {
      const MatrixView<float> g(out + group, 1, Extent(args.group), args.group);
      rms_norm<L>({.x = g, .weight = args.weight + group, .eps = args.eps, .out = g});
    }
  }
}

}  // namespace
}  // namespace rota::lanes
