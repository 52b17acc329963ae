// Which build of this program runs: the linker's build id, 40 hexadecimal digits.
#pragma once

#include <string>

namespace rota {

// Empty where the linker has left none.
std::string build_id();

}  // namespace rota
