// Numbers of bytes as people read them, in the largest unit that keeps a digit before the point.
//
//   format_bytes(65248815744)    // "65.25 GB"
//   format_bytes(81920)          // "81.92 kB"
#pragma once

#include <cstdint>
#include <string>

namespace rota {

std::string format_bytes(int64_t bytes);

}  // namespace rota
