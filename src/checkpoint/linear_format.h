// How a linear layer's weight is stored. Checkpoints say it for all layers at once, with
// exceptions, or layer by layer.
#pragma once

#include <cstdint>

namespace rota {

enum class LinearCode { kPlain, kMxfp4, kFp8, kNvfp4 };

struct LinearFormat {
  LinearCode code = LinearCode::kPlain;
  // kFp8: outputs and inputs that share a factor; 0: all of them.
  int64_t block_out = 0;
  int64_t block_in = 0;
  // kFp8: the factors are called weight_scale_inv. They multiply all the same.
  bool named_inverse = false;

  bool operator==(const LinearFormat&) const = default;
};

}  // namespace rota
