// Brings activations into the order in which words.h makes weights, rounded to the compute type, as
// float32 or BF16.
#include <algorithm>

#include "base/check.h"
#include "kernels/avx512/avx512_kernels.h"
#include "kernels/avx512/input_kind.h"
#include "kernels/avx512/intrinsics.h"

namespace rota::ROTA_AVX512 {
namespace {

// As to_bf16(): nearest even, NaN stays NaN; the low half of the float is zero then.
__m512i round_to_bf16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_and_si512(_mm512_mask_blend_epi32(nan, rounded, quiet),
                          _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
}

// 32 floats in order to even ones and odd ones.
struct Halves {
  __m512i even, odd;
};
Halves even_and_odd(const float* from) {
  const __m512i low = _mm512_loadu_si512(from), high = _mm512_loadu_si512(from + 16);
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  return {_mm512_permutex2var_epi32(low, even, high), _mm512_permutex2var_epi32(low, odd, high)};
}

// 32 floats to what meets the even words of a decoded block, 8 d + j in lane j at place d, and the
// odd words, 4 further.
Halves e2m1_order(const float* from) {
  const __m512i low = _mm512_loadu_si512(from), high = _mm512_loadu_si512(from + 16);
  const __m512i even = _mm512_set_epi32(27, 19, 11, 3, 26, 18, 10, 2, 25, 17, 9, 1, 24, 16, 8, 0);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(4));
  return {_mm512_permutex2var_epi32(low, even, high), _mm512_permutex2var_epi32(low, odd, high)};
}

// Rounded floats to words: the first of each pair in the lower half.
__m512i to_words(Halves halves) {
  return _mm512_or_si512(_mm512_srli_epi32(halves.even, 16), halves.odd);
}

// 32 elements.
void order(int kind, const float* from, std::byte* to) {
  if (kind == kFloatsInOrder) {
    _mm512_store_si512(to, _mm512_loadu_si512(from));
    _mm512_store_si512(to + 64, _mm512_loadu_si512(from + 16));
    return;
  }
  const bool e2m1 = kind == kFloatsE2m1 || kind == kWordsE2m1;
  const Halves halves = e2m1 ? e2m1_order(from) : even_and_odd(from);
  if (kind >= kWordsInOrder) {
    _mm512_store_si512(to, to_words(halves));
  } else {
    _mm512_store_si512(to, halves.even);
    _mm512_store_si512(to + 64, halves.odd);
  }
}

void prepare_row(const float* from, int64_t count, int64_t padded, int kind, Compute compute,
                 std::byte* to) {
  const int64_t element = kind >= kWordsInOrder ? 2 : 4;
  for (int64_t k = 0; k < padded; k += 32) {
    alignas(64) float step[32] = {};
    std::copy_n(from + k, std::clamp<int64_t>(count - k, 0, 32), step);
    if (compute == Compute::kBf16) {
      _mm512_store_si512(step, round_to_bf16(_mm512_load_ps(step)));
      _mm512_store_si512(step + 16, round_to_bf16(_mm512_load_ps(step + 16)));
    }
    order(kind, step, to + k * element);
  }
}

}  // namespace

PreparedInput prepare_input(MatrixView<const float> x, std::span<const int32_t> rows, Extent in,
                            InputLayout layout, Compute compute, std::byte* prepared) {
  if (compute == Compute::kInt8) return prepare_int8_input(x, rows, in, layout, prepared);
  ROTA_DCHECK(x.width().logical() >= in.logical(), "the input is narrower than the weights");
  const int64_t tokens = rows.empty() ? x.rows() : static_cast<int64_t>(rows.size());
  const int64_t padded = round_up(in.padded(), kInputStep);
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t row = rows.empty() ? t : rows.data()[t];
    prepare_row(x.data() + row * x.stride(), in.logical(), padded, layout.kind, compute,
                prepared + t * layout.token_stride.count);
  }
  return {.data = prepared, .layout = layout, .compute = compute, .tokens = tokens};
}

}  // namespace rota::ROTA_AVX512
