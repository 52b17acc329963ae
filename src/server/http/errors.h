// Errors as OpenAI's clients expect them: {"error": {"message", "type", "param", "code"}}.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/http/http_server.h"

namespace rota {

// `param` names the request's field; `code` is what clients switch on (context_length_exceeded,
// ...).
HttpResponse error_response(int status, std::string_view message, std::string_view type,
                            const std::optional<std::string>& param = {},
                            const std::optional<std::string>& code = {});

// The response that a Status means. kInvalidArgument messages begin with "FIELD: ", which becomes
// `param`.
HttpResponse error_response(const Status& status);

// The error object alone, for an event of a stream that has begun.
std::string error_json(std::string_view message, std::string_view type,
                       const std::optional<std::string>& param,
                       const std::optional<std::string>& code);

}  // namespace rota
