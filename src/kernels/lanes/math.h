// exp and sigmoid over vectors, and loops over rows: written once, compiled for each ISA.
//
// `L` is an ISA's vector type (avx2/lanes.h, avx512/lanes.h). Everything here is internal to the
// source that includes it: a copy compiled for one ISA must not serve another.
//
// Contract: an element's result depends on its value alone, not on where in a row it stands: what
// is left at the end of a row goes through the same vector code with zeros in the other lanes.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace rota::lanes {
namespace {

// A whole vector of a row, or what is left at its end.
template <class L>
struct AllLanes {
  using Vec = typename L::Vec;
  static constexpr int64_t count() { return L::kCount; }
  Vec load(const float* p) const { return L::load(p); }
  Vec load_bf16(const Bf16* p) const { return L::load_bf16(p); }
  typename L::Two load_interleaved(const float* p) const {
    return L::deinterleave(L::load(p), L::load(p + L::kCount));
  }
  void store(float* p, Vec v) const { L::store(p, v); }
  Vec keep(Vec v, Vec /*otherwise*/) const { return v; }
};

template <class L>
struct FirstLanes {
  using Vec = typename L::Vec;
  int64_t n;
  int64_t count() const { return n; }
  Vec load(const float* p) const { return L::load_first(p, n); }
  Vec load_bf16(const Bf16* p) const { return L::load_bf16_first(p, n); }
  typename L::Two load_interleaved(const float* p) const {
    return L::deinterleave(L::load_first(p, 2 * n),
                           L::load_first(p + L::kCount, 2 * n - L::kCount));
  }
  void store(float* p, Vec v) const { L::store_first(p, n, v); }
  Vec keep(Vec v, Vec otherwise) const { return L::keep(v, 0, n, otherwise); }
};

// Calls body(i, part) for i = 0, kCount, 2 kCount.. over a row of `width` elements.
template <class L, class Body>
void for_each_vector(int64_t width, Body body) {
  int64_t i = 0;
  for (; i + L::kCount <= width; i += L::kCount) body(i, AllLanes<L>{});
  if (i < width) body(i, FirstLanes<L>{width - i});
}

// e^x for x <= 0, within 1 ulp; 0 below -87.33 (where float32 has subnormals only). NaN stays NaN.
// exp(x) = 2^n exp(r), r = x - n ln 2 in two steps; exp(r) = 1 + r + r^2 q(r), q the polynomial
// of degree 4 with the least relative error on |r| <= ln 2 / 2 (3e-9).
template <class L>
typename L::Vec exp_of_nonpositive(typename L::Vec x) {
  using Vec = typename L::Vec;
  const Vec lowest = L::broadcast(-87.33f);
  const Vec clamped = L::max(lowest, x);
  // Adding 1.5 2^23 rounds to a whole number and leaves it, plus 127, in the low bits.
  const Vec shifter = L::broadcast(0x1.8p23f + 127.0f);
  const Vec shifted = L::fma(clamped, L::broadcast(0x1.715476p+0f), shifter);  // 1 / ln 2
  const Vec n = L::sub(shifted, shifter);
  Vec r = L::fnma(n, L::broadcast(0x1.62e400p-1f), clamped);  // ln 2, its first 15 bits
  r = L::fnma(n, L::broadcast(0x1.7f7d1cp-20f), r);           // the rest of ln 2
  Vec q = L::broadcast(0x1.6a23cep-10f);
  q = L::fma(q, r, L::broadcast(0x1.123a20p-7f));
  q = L::fma(q, r, L::broadcast(0x1.5558f2p-5f));
  q = L::fma(q, r, L::broadcast(0x1.555492p-3f));
  q = L::fma(q, r, L::broadcast(0x1.fffffcp-2f));
  const Vec e = L::add(L::fma(L::mul(r, r), q, r), L::broadcast(1.0f));
  const Vec result = L::mul(e, L::power_of_low_bits(shifted));
  return L::select(L::less(x, lowest), L::zero(), result);
}

template <class L>
float exp_of_nonpositive(float x) {
  return L::first_lane(exp_of_nonpositive<L>(L::broadcast(x)));
}

// 1 / (1 + e^-x), without overflow: e^-|x| is never above 1.
template <class L>
typename L::Vec sigmoid(typename L::Vec x) {
  const typename L::Vec one = L::broadcast(1.0f);
  const typename L::Vec e = exp_of_nonpositive<L>(L::negative_magnitude(x));
  return L::div(L::select(L::less(x, L::zero()), e, one), L::add(one, e));
}

}  // namespace
}  // namespace rota::lanes
