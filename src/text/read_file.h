// A whole file of a model folder as a string, with a bound.
#pragma once

#include <filesystem>
#include <string>

#include "base/status.h"

namespace rota {

// kNotFound, kIo, or kDataLoss where it is no regular file or longer than `max_bytes`.
Result<std::string> read_file(const std::filesystem::path& path, size_t max_bytes);

}  // namespace rota
