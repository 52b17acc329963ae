// Frames on their way to the engine's process, as far as its socket has not taken them. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "base/status.h"
#include "engine/wire.h"

namespace rota {

class Outgoing {
 public:
  void push(const wire::Message& message) { push(message, {}); }
  void push_submit(wire::Submit submit);

  // A request of which the process has seen nothing is dropped, so that clients who ask and leave
  // while it takes no messages cost no memory; any other is cancelled there.
  void take_back(const std::string& wire_id);

  // Hands over what the non-blocking socket takes now. A process that has gone is no error: whoever
  // reads from it sees that too.
  Status write_to(int socket);

  void clear();
  bool empty() const { return frames_.empty(); }
  int64_t bytes() const;

 private:
  struct Frame {
    std::string bytes;
    std::string submits;  // the id on the wire of the request that it brings; else empty
  };
  void push(const wire::Message& message, std::string submits);

  std::deque<Frame> frames_;
  size_t sent_of_first_ = 0;  // bytes that the process has
};

}  // namespace rota
