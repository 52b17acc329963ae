// Any bytes as a frame of the engine's protocol: an error, or a message that survives its way back.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "engine/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rota;
  const Result<wire::Message> message = wire::decode({data, size});
  if (!message.ok()) return 0;
  wire::FrameReader reader;
  reader.append(wire::encode(*message));
  const Result<std::optional<wire::Message>> again = reader.next();
  ROTA_CHECK(again.ok() && again->has_value() && (*again)->index() == message->index(),
             "a message that was read is not read again");
  return 0;
}
