// Which bytes of a checkpoint are of experts that this rank holds, by the names of tensors.
//
//   checkpoint.warm({.own = own_parts(map)});       // of experts: this rank's alone
// Experts are found by ".experts.7." in a name, or, where they are stacked, by the leading side of
// the shape.
#pragma once

#include "checkpoint/checkpoint.h"
#include "moe/expert_map.h"

namespace rota {

OwnParts own_parts(const ExpertMap& map);

}  // namespace rota
