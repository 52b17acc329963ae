// What a thread allocates shows who does the work, whatever the clock says. For the tests of this
// room.
#pragma once

#include <cstddef>

namespace rota::test {

// By this thread through operator new, ever.
size_t bytes_allocated();

}  // namespace rota::test
