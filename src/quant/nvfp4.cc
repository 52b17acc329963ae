#include "quant/nvfp4.h"

#include "quant/fp8.h"
#include "quant/mxfp4.h"

namespace rota {

void decode_nvfp4_block(std::span<const uint8_t, 8> codes, uint8_t scale,
                        std::span<float, 16> out) {
  const float factor = e4m3_to_float(scale);
  for (size_t i = 0; i < codes.size(); ++i) {
    out[2 * i] = kE2m1Values[codes[i] & 15] * factor;
    out[2 * i + 1] = kE2m1Values[codes[i] >> 4] * factor;
  }
}

}  // namespace rota
