// A progress line for long loads: "loading weights  42 %  5.8 of 13.8 GB  2.1 GB/s".
//
// On a terminal the line is redrawn in place with a bar; elsewhere it is logged every ten seconds
// and at the end.
//   checkpoint.warm({.progress = console_progress("loading weights")});
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/checkpoint.h"

namespace rota {

std::string progress_line(std::string_view what, int64_t done, int64_t total, double seconds);

LoadProgress console_progress(std::string what);

}  // namespace rota
