// A whole regular file as a string, with a bound.
//
//   ROTA_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxConfigBytes));
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace rota {

// kNotFound if there is none; kInvalidArgument if it is a folder, a device, a pipe (on which it
// does not wait) or longer than `max_bytes`; kIo if the system refused. Messages begin with the
// path.
Result<std::string> read_file(const std::string& path, int64_t max_bytes);

}  // namespace rota
