// Rotary embedding, scalar: pairs (i, i + d/2) of every head.
#include "kernels/ref/ref_kernels.h"

namespace rota::ref {

void rotate(const RotateArgs& args) {
  const int64_t half = args.head_dim / 2;
  for (int64_t t = 0; t < args.tokens; ++t) {
    const float* cos = args.cos + t * half;
    const float* sin = args.sin + t * half;
    for (int64_t h = 0; h < args.heads; ++h) {
      float* first = args.x + t * args.stride + h * args.head_dim;
      float* second = first + half;
      for (int64_t i = 0; i < half; ++i) {
        const float a = first[i];
        const float b = second[i];
        first[i] = a * cos[i] - b * sin[i];
        second[i] = b * cos[i] + a * sin[i];
      }
    }
  }
}

}  // namespace rota::ref
