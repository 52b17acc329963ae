// Any bytes as a frame of the engine's protocol: a message or an error.
#include <cstddef>
#include <cstdint>

#include "engine/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static_cast<void>(rota::wire::decode({data, size}));
  return 0;
}
