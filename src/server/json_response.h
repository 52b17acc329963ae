// A JSON value as an answer.
#pragma once

#include "server/api/json_fields.h"
#include "server/http/http_server.h"

namespace rota {

inline HttpResponse json_response(const OrderedJson& body) {
  HttpResponse response;
  response.body = dump(body);
  return response;
}

}  // namespace rota
