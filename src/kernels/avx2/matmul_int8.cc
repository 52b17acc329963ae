// The AVX2 matmul with 8-bit inputs: 8 rows of weights a vector. Products are added in pairs to 16
// bits, four steps of them at most: 4 x 2 x 24 x 127 is below 2^15.
#include "kernels/lanes/matmul_int8.h"

#include <immintrin.h>

#include "kernels/avx2/avx2_kernels.h"
#include "kernels/avx2/matmul_tiles.h"
#include "quant/fp8.h"

namespace rota::avx2 {
namespace {

struct Int8Lanes {
  static constexpr int kRows = 8;
  static constexpr int kManyVectors = 2;
  static constexpr int kManyTokens = 2;
  static constexpr int kFewTokens = 2;
  using Ints = __m256i;
  using Floats = __m256;
  using Partial = __m256i;

  static Ints broadcast(int32_t x) { return _mm256_set1_epi32(x); }
  static Floats broadcast(float x) { return _mm256_set1_ps(x); }
  static Floats zero() { return _mm256_setzero_ps(); }
  static Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static Floats to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
  static void store(float* to, Floats x) { _mm256_storeu_ps(to, x); }

  // Vector i holds rows i and 4 + i; then 4 x 4 dwords are transposed in each lane.
  static void transpose(const uint8_t* const (&codes)[kRows], Ints (&out)[4]) {
    Ints v[4];
    for (int i = 0; i < 4; ++i) {
      const auto row = [&codes, i](int lane) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes[4 * lane + i]));
      };
      v[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(row(0)), row(1), 1);
    }
    const Ints low01 = _mm256_unpacklo_epi32(v[0], v[1]);
    const Ints low23 = _mm256_unpacklo_epi32(v[2], v[3]);
    const Ints high01 = _mm256_unpackhi_epi32(v[0], v[1]);
    const Ints high23 = _mm256_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm256_unpacklo_epi64(low01, low23);
    out[1] = _mm256_unpackhi_epi64(low01, low23);
    out[2] = _mm256_unpacklo_epi64(high01, high23);
    out[3] = _mm256_unpackhi_epi64(high01, high23);
  }

  static Ints low_weights(Ints bytes) {
    // Twice 0 .5 1 1.5 2 3 4 6 and their negatives, plus 12.
    const Ints table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    return _mm256_shuffle_epi8(table, _mm256_and_si256(bytes, broadcast(0x0f0f0f0f)));
  }
  static Ints high_weights(Ints bytes) { return low_weights(_mm256_srli_epi16(bytes, 4)); }

  static Ints widen(const uint8_t* bytes) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
  }
  // E8M0: the exponent; 0 is subnormal, 255 NaN.
  static Floats scales(Mxfp4Code, const uint8_t* bytes) {
    const Ints wide = widen(bytes);
    const Ints values = _mm256_max_epi32(_mm256_slli_epi32(wide, 23), broadcast(0x00400000));
    return nan_where(_mm256_cmpeq_epi32(wide, broadcast(255)), _mm256_castsi256_ps(values));
  }
  // E4M3: as a float's exponent and mantissa, which is 2^120 times too small.
  static Floats scales(Nvfp4Code, const uint8_t* bytes) {
    const Ints wide = widen(bytes);
    const Ints magnitude = _mm256_and_si256(wide, broadcast(0x7f));
    const Ints sign = _mm256_slli_epi32(_mm256_and_si256(wide, broadcast(0x80)), 24);
    const Ints bits = _mm256_or_si256(_mm256_slli_epi32(magnitude, 20), sign);
    const Floats values = _mm256_mul_ps(_mm256_castsi256_ps(bits), broadcast(0x1p120f));
    return nan_where(_mm256_cmpeq_epi32(magnitude, broadcast(int32_t{kE4m3Nan})), values);
  }
  static Floats nan_where(Ints where, Floats values) {
    return _mm256_blendv_ps(values, broadcast(std::numeric_limits<float>::quiet_NaN()),
                            _mm256_castsi256_ps(where));
  }

  static Partial begin(Ints) { return _mm256_setzero_si256(); }
  static Partial step(Partial partial, Ints weights, Ints inputs) {
    return _mm256_add_epi16(partial, _mm256_maddubs_epi16(weights, inputs));
  }
  static Ints end(Ints total, Partial partial) {
    return _mm256_add_epi32(total, _mm256_madd_epi16(partial, _mm256_set1_epi16(1)));
  }
};

}  // namespace

InputLayout int8_input_layout(const WeightMatrix& weights) { return int8_layout(weights); }

PreparedInput prepare_int8_input(MatrixView<const float> x, std::span<const int32_t> rows,
                                 Extent in, InputLayout layout, std::byte* prepared) {
  return prepare_int8(x, rows, in, layout, prepared);
}

int64_t int8_columns() { return lanes::int8_column_granularity<Int8Lanes>(); }
Bytes int8_scratch_bytes() { return {lanes::int8_scratch_bytes<Int8Lanes>()}; }
void multiply_int8(const MatmulArgs& args) { lanes::multiply_int8<Int8Lanes>(args); }

}  // namespace rota::avx2
