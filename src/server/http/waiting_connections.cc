#include "server/http/waiting_connections.h"

#include <algorithm>

#include "server/http/connection.h"

namespace rota {

WaitingConnections::Place::Place(WaitingConnections& all, HttpConnection& connection)
    : all_(all), connection_(connection), at_(all.places_.insert(all.places_.end(), this)) {}

WaitingConnections::Place::~Place() {
  if (!closed_) all_.places_.erase(at_);
}

void WaitingConnections::close(Place& place) {
  places_.erase(place.at_);
  place.closed_ = true;
  place.connection_.close_at_once();
}

bool WaitingConnections::evict() {
  const auto idle = std::ranges::find_if(
      places_, [](const Place* place) { return !place->connection_.has_bytes(); });
  if (idle != places_.end()) {
    close(**idle);
    return true;
  }
  if (places_.empty() || Clock::now() - places_.front()->since_ < kHeaderPatience) return false;
  close(*places_.front());
  return true;
}

}  // namespace rota
