#include "supervisor/outgoing.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace rota {

void Outgoing::push(const wire::Message& message, std::string submits) {
  frames_.push_back({wire::encode(message), std::move(submits)});
}

void Outgoing::push_submit(wire::Submit submit) {
  std::string id = submit.request.id;
  push(std::move(submit), std::move(id));
}

void Outgoing::take_back(const std::string& wire_id) {
  const size_t begun = sent_of_first_ > 0 ? 1 : 0;
  const auto unseen =
      std::find_if(frames_.begin() + static_cast<std::ptrdiff_t>(begun), frames_.end(),
                   [&](const Frame& frame) { return frame.submits == wire_id; });
  if (unseen != frames_.end()) {
    frames_.erase(unseen);
  } else {
    push(wire::Cancel{wire_id});
  }
}

Status Outgoing::write_to(int socket) {
  while (!frames_.empty()) {
    const std::string& bytes = frames_.front().bytes;
    const ssize_t n =
        ::send(socket, bytes.data() + sent_of_first_, bytes.size() - sent_of_first_, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EPIPE || errno == ECONNRESET)) break;
    if (n < 0) return error(StatusCode::kIo, "send: {}", std::strerror(errno));
    sent_of_first_ += static_cast<size_t>(n);
    if (sent_of_first_ < bytes.size()) continue;
    frames_.pop_front();
    sent_of_first_ = 0;
  }
  return {};
}

void Outgoing::clear() {
  frames_.clear();
  sent_of_first_ = 0;
}

int64_t Outgoing::bytes() const {
  size_t sum = 0;
  for (const Frame& frame : frames_) sum += frame.bytes.size();
  return static_cast<int64_t>(sum - sent_of_first_);
}

}  // namespace rota
