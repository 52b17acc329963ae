// The row-wise and element-wise kernels of KernelTable over an ISA's vectors `L`: written once,
// compiled for each ISA, internal to the source that includes it (see lanes/math.h).
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "kernels/kernels.h"
#include "kernels/lanes/math.h"

namespace rota::lanes {
namespace {

// Of one row. The order of the sum follows from `width` alone: element i goes to lane i mod
// kCount of chain (i / kCount) mod 4.
template <class L>
float sum_of_squares(const float* x, int64_t width) {
  using Vec = typename L::Vec;
  constexpr int64_t kStep = 4 * L::kCount;
  Vec sums[4] = {L::zero(), L::zero(), L::zero(), L::zero()};
  int64_t i = 0;
  for (; i + kStep <= width; i += kStep) {
    for (int64_t chain = 0; chain < 4; ++chain) {
      const Vec v = L::load(x + i + chain * L::kCount);
      sums[chain] = L::fma(v, v, sums[chain]);
    }
  }
  for_each_vector<L>(width - i, [&](int64_t j, auto part) {
    const Vec v = part.load(x + i + j);
    Vec& sum = sums[j / L::kCount];
    sum = L::fma(v, v, sum);
  });
  return L::sum(L::add(L::add(sums[0], sums[1]), L::add(sums[2], sums[3])));
}

template <class L>
void rms_norm(const RmsNormArgs& args) {
  using Vec = typename L::Vec;
  const int64_t width = args.x.width().logical();
  for (int64_t t = 0; t < args.x.rows(); ++t) {
    const float* x = args.x.data() + t * args.x.stride();
    float* out = args.out.data() + t * args.out.stride();
    const float mean = sum_of_squares<L>(x, width) / static_cast<float>(width);
    const Vec inverse = L::broadcast(1.0f / __builtin_sqrtf(mean + args.eps));
    for_each_vector<L>(width, [&](int64_t i, auto part) {
      const Vec normed = L::mul(part.load(x + i), inverse);
      part.store(out + i, L::mul(normed, part.load_bf16(args.weight + i)));
    });
  }
}

template <class L>
void softmax(std::span<float> row) {
  using Vec = typename L::Vec;
  float* x = row.data();
  const auto width = static_cast<int64_t>(row.size());
  const Vec lowest = L::broadcast(-std::numeric_limits<float>::infinity());
  Vec largest = lowest;
  for_each_vector<L>(width, [&](int64_t i, auto part) {
    largest = L::max(largest, part.keep(part.load(x + i), lowest));
  });
  largest = L::broadcast(L::largest(largest));
  Vec sum = L::zero();
  for_each_vector<L>(width, [&](int64_t i, auto part) {
    const Vec e = exp_of_nonpositive<L>(L::sub(part.load(x + i), largest));
    sum = L::add(sum, part.keep(e, L::zero()));
    part.store(x + i, e);
  });
  const Vec inverse = L::broadcast(1.0f / L::sum(sum));
  for_each_vector<L>(
      width, [&](int64_t i, auto part) { part.store(x + i, L::mul(part.load(x + i), inverse)); });
}

template <class L>
void rotate(const RotateArgs& args) {
  const int64_t half = args.head_dim / 2;
  for (int64_t t = 0; t < args.tokens; ++t) {
    const float* cos = args.cos + t * half;
    const float* sin = args.sin + t * half;
    for (int64_t h = 0; h < args.heads; ++h) {
      float* first = args.x + t * args.stride + h * args.head_dim;
      float* second = first + half;
      for_each_vector<L>(half, [&](int64_t i, auto part) {
        const auto a = part.load(first + i);
        const auto b = part.load(second + i);
        const auto c = part.load(cos + i);
        const auto s = part.load(sin + i);
        part.store(first + i, L::fnma(b, s, L::mul(a, c)));
        part.store(second + i, L::fma(a, s, L::mul(b, c)));
      });
    }
  }
}

template <class L>
void swiglu_oai(const SwigluOaiArgs& args) {
  using Vec = typename L::Vec;
  const int64_t width = args.out.width().logical();
  const Vec limit = L::broadcast(args.limit);
  const Vec lower = L::broadcast(-args.limit);
  const Vec alpha = L::broadcast(args.alpha);
  for (int64_t t = 0; t < args.out.rows(); ++t) {
    const float* gate_up = args.gate_up.data() + t * args.gate_up.stride();
    float* out = args.out.data() + t * args.out.stride();
    for_each_vector<L>(width, [&](int64_t i, auto part) {
      const auto pair = part.load_interleaved(gate_up + 2 * i);
      const Vec gate = L::min(limit, pair.even);
      const Vec up = L::max(lower, L::min(limit, pair.odd));
      const Vec swish = L::mul(gate, sigmoid<L>(L::mul(alpha, gate)));
      part.store(out + i, L::fma(up, swish, swish));
    });
  }
}

template <class L>
void silu_mul(const SiluMulArgs& args) {
  const int64_t width = args.out.width().logical();
  for (int64_t t = 0; t < args.out.rows(); ++t) {
    const float* gates = args.gate.data() + t * args.gate.stride();
    const float* ups = args.up.data() + t * args.up.stride();
    float* out = args.out.data() + t * args.out.stride();
    for_each_vector<L>(width, [&](int64_t i, auto part) {
      const auto gate = part.load(gates + i);
      const auto silu = L::mul(gate, sigmoid<L>(gate));
      part.store(out + i, L::mul(silu, part.load(ups + i)));
    });
  }
}

template <class L>
void relu2(MatrixView<const float> x, MatrixView<float> out) {
  const int64_t width = out.width().logical();
  for (int64_t t = 0; t < out.rows(); ++t) {
    const float* in = x.data() + t * x.stride();
    float* squares = out.data() + t * out.stride();
    for_each_vector<L>(width, [&](int64_t i, auto part) {
      const auto positive = L::max(L::zero(), part.load(in + i));
      part.store(squares + i, L::mul(positive, positive));
    });
  }
}

template <class L>
void add(MatrixView<float> into, MatrixView<const float> what) {
  const int64_t width = into.width().logical();
  for (int64_t t = 0; t < into.rows(); ++t) {
    float* sum = into.data() + t * into.stride();
    const float* addend = what.data() + t * what.stride();
    for_each_vector<L>(width, [&](int64_t i, auto part) {
      part.store(sum + i, L::add(part.load(sum + i), part.load(addend + i)));
    });
  }
}

template <class L>
void add_scaled(std::span<float> out, float scale, std::span<const float> what) {
  const auto factor = L::broadcast(scale);
  for_each_vector<L>(static_cast<int64_t>(out.size()), [&](int64_t i, auto part) {
    float* sum = out.data() + i;
    part.store(sum, L::add(part.load(sum), L::mul(factor, part.load(what.data() + i))));
  });
}

template <class L>
void bf16_to_float(std::span<const Bf16> in, std::span<float> out) {
  for_each_vector<L>(static_cast<int64_t>(in.size()), [&](int64_t i, auto part) {
    part.store(out.data() + i, part.load_bf16(in.data() + i));
  });
}

}  // namespace
}  // namespace rota::lanes
