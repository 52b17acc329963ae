// Looks over a MessagePack document before it is parsed: one value, complete, and no deeper than
// allowed. The parser behind it is recursive, and a few megabytes of "array of one" would end it.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"

namespace rota::wire {

// kDataLoss says where it is wrong. Maps and extension types are not used here, and refused.
Status check_msgpack_shape(std::span<const uint8_t> document, int max_depth);

}  // namespace rota::wire
