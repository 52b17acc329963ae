// Which mapped file an address belongs to: the registry behind install_mapped_file_guard(). Used by
// mapped_file.cc alone.
//
// Contract: add and remove may be called from any thread; the lookup runs inside a signal handler,
// so entries are never freed (removed ones are used again) and their bounds are atomics.
#pragma once

#include <cstddef>
#include <string_view>

namespace rota::internal {

void guard_add(const std::byte* begin, size_t length, std::string_view path);
void guard_remove(const std::byte* begin);

}  // namespace rota::internal
