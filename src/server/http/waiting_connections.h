// Connections on which no request is under way: those that a server out of places may close.
//
// One thread. A connection waits from the moment it is looked at for a request until the request's
// header is whole:
//   { const WaitingConnections::Place place(waiting, *this); co_await read_header(); }
#pragma once

#include <list>

#include "platform/clock.h"

namespace rota {

class HttpConnection;

class WaitingConnections {
 public:
  class Place {
   public:
    Place(WaitingConnections& all, HttpConnection& connection);
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

   private:
    friend class WaitingConnections;
    WaitingConnections& all_;
    HttpConnection& connection_;
    Clock::time_point since_ = Clock::now();
    bool closed_ = false;
    std::list<Place*>::iterator at_;
  };

  // Closes the connection that has been idle longest, kept alive or never used, so that its
  // descriptor is free when this returns; where all have sent something, one that has been at its
  // header for longer than kHeaderPatience. False: there is none.
  bool evict();

 private:
  static constexpr std::chrono::seconds kHeaderPatience{2};

  void close(Place& place);

  std::list<Place*> places_;  // the longest waiting first
};

}  // namespace rota
