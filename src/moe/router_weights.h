// What a layer's router is in the checkpoint. A logit that is no number counts as the lowest one
// (routing.h): an expert with such a weight would never be chosen and the text would still read
// well. So all of a router's numbers, which are few, are looked at when it is loaded.
//
//   ROTA_ASSIGN_OR_RETURN(RouterWeights router, RouterWeights::load(checkpoint, names, config));
#pragma once

#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "kernels/matmul.h"
#include "moe/config.h"

namespace rota {

struct RouterWeights {
  WeightMatrix matrix;                 // [E, H], BF16 or float32, with its bias: where they lie
  std::vector<float> correction_bias;  // [E] or none
  Bytes bytes;                         // with its biases, as they lie in the file

  // kDataLoss names file, tensor, expert and place of a number that is not finite.
  static Result<RouterWeights> load(const Checkpoint& checkpoint, const MoeTensorNames& names,
                                    const MoeConfig& config);
};

}  // namespace rota
