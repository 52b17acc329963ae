// Assertions, for our own bugs only: wrong input never aborts, it becomes a Status.
#pragma once

#include <string_view>

namespace rota {

// Prints file, line, condition and message to stderr, then aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               std::string_view message);

}  // namespace rota

// Always on. The message says what the code believed.
#define ROTA_CHECK(condition, message)                               \
  do {                                                               \
    if (!(condition)) [[unlikely]]                                   \
      ::rota::check_failed(__FILE__, __LINE__, #condition, message); \
  } while (false)

// On in dev and sanitizer builds (ROTA_POISON); free in release: for hot paths.
#ifdef ROTA_POISON
#define ROTA_DCHECK(condition, message) ROTA_CHECK(condition, message)
#else
#define ROTA_DCHECK(condition, message) \
  do {                                  \
  } while (false && (condition))
#endif
