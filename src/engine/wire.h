// What the front and the engine's process say to each other over their socket: frames of
// MessagePack.
//
// Contract: a frame is a length (4 bytes, little-endian, 1 .. kMaxFrameBytes) and that many bytes
// of MessagePack: [type, member, member, ...]. Whatever arrives is checked before it is believed:
// length, depth, types, number of members, ranges of enums. Garbage is an error, never a crash.
// Both ends are the same program on the same machine: numbers in arrays travel as they lie.
//
//   std::string frame = wire::encode(wire::Cancel{.id = "7"});
//   wire::FrameReader reader;
//   reader.append(bytes);
//   ROTA_ASSIGN_OR_RETURN(std::optional<wire::Message> message, reader.next());   // none: incomplete
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "engine/engine_client.h"
#include "engine/engine_options.h"

namespace rota::wire {

inline constexpr size_t kMaxFrameBytes = size_t{128} << 20;

// From the front.
struct Start {
  std::string options;  // EngineOptions as JSON
};
struct Submit {
  EngineRequest request;
};
struct Cancel {
  std::string id;
};

// From the engine.
struct Hello {  // loaded: serves now
  EngineInfo info;
};
struct Failed {  // cannot be loaded; the process ends
  Status status;
};
struct Outputs {  // of one step
  std::vector<RequestOutput> outputs;
};
struct Heartbeat {
  double seconds_since_step = 0;  // 0 while it loads or has nothing to do
  EngineStats stats;
};

using Message = std::variant<Start, Submit, Cancel, Hello, Failed, Outputs, Heartbeat>;

std::string encode(const Message& message);  // a whole frame
Result<Message> decode(std::span<const uint8_t> payload);

// Puts frames together from portions of any size.
class FrameReader {
 public:
  void append(std::string_view bytes) { buffer_.append(bytes); }
  // After an error the connection is of no more use.
  Result<std::optional<Message>> next();

 private:
  std::string buffer_;
  size_t used_ = 0;
};

}  // namespace rota::wire
