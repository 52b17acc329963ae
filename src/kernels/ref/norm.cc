// RMS norm and softmax of a row, scalar: sums in double, so that other ISAs have an oracle.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ref/ref_kernels.h"

namespace rota::ref {

void rms_norm(const RmsNormArgs& args) {
  const int64_t width = args.x.width().logical();
  for (int64_t t = 0; t < args.x.rows(); ++t) {
    const float* x = args.x.row(t).data();
    float* out = args.out.row(t).data();
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) squares += double{x[i]} * double{x[i]};
    const double mean = squares / static_cast<double>(width);
    const auto inverse = static_cast<float>(1.0 / std::sqrt(mean + double{args.eps}));
    for (int64_t i = 0; i < width; ++i) out[i] = x[i] * inverse * to_float(args.weight[i]);
  }
}

void softmax(std::span<float> row) {
  float largest = -std::numeric_limits<float>::infinity();
  for (const float x : row) largest = std::max(largest, x);
  double sum = 0;
  for (float& x : row) {
    const double e = std::exp(double{x} - double{largest});
    sum += e;
    x = static_cast<float>(e);
  }
  const auto inverse = static_cast<float>(1.0 / sum);
  for (float& x : row) x *= inverse;
}

}  // namespace rota::ref
