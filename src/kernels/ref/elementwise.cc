// Element-wise kernels, scalar. The other ISAs give the same bits: nothing here is a sum of many.
#include "kernels/ref/ref_kernels.h"

namespace rota::ref {

void add(MatrixView<float> into, MatrixView<const float> what) {
  const int64_t width = into.width().logical();
  for (int64_t t = 0; t < into.rows(); ++t) {
    float* sum = into.row(t).data();
    const float* addend = what.row(t).data();
    for (int64_t i = 0; i < width; ++i) sum[i] += addend[i];
  }
}

void add_scaled(std::span<float> out, float scale, std::span<const float> what) {
  for (size_t i = 0; i < out.size(); ++i) out[i] += scale * what[i];
}

void bf16_to_float(std::span<const Bf16> in, std::span<float> out) {
  for (size_t i = 0; i < in.size(); ++i) out[i] = to_float(in[i]);
}

}  // namespace rota::ref
