// Norm, rope, activations and element-wise kernels: kernels/lanes/rows.h over AVX2's vectors.
#include "kernels/lanes/rows.h"

#include "kernels/avx2/avx2_kernels.h"
#include "kernels/avx2/lanes.h"

namespace rota::avx2 {

void rms_norm(const RmsNormArgs& args) { lanes::rms_norm<Lanes>(args); }
void rotate(const RotateArgs& args) { lanes::rotate<Lanes>(args); }
void swiglu_oai(const SwigluOaiArgs& args) { lanes::swiglu_oai<Lanes>(args); }
void silu_mul(const SiluMulArgs& args) { lanes::silu_mul<Lanes>(args); }
void relu2(MatrixView<const float> x, MatrixView<float> out) { lanes::relu2<Lanes>(x, out); }
void add(MatrixView<float> into, MatrixView<const float> what) { lanes::add<Lanes>(into, what); }
void add_scaled(std::span<float> out, float scale, std::span<const float> what) {
  lanes::add_scaled<Lanes>(out, scale, what);
}
void bf16_to_float(std::span<const Bf16> in, std::span<float> out) {
  lanes::bf16_to_float<Lanes>(in, out);
}
void softmax(std::span<float> row) { lanes::softmax<Lanes>(row); }

}  // namespace rota::avx2
