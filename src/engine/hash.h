// FNV-1a: short, the same on every machine. For comparing ranks and finding prefixes again; not for
// guarding against somebody who wants two things to be equal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace rota {

inline constexpr uint64_t kHashStart = 0xcbf29ce484222325;

// Continues a hash over more bytes.
inline uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t hash = kHashStart) {
  for (const std::byte byte : bytes) {
    hash = (hash ^ std::to_integer<uint64_t>(byte)) * 0x100000001b3;
  }
  return hash;
}

inline uint64_t hash_text(std::string_view text, uint64_t hash = kHashStart) {
  return hash_bytes(std::as_bytes(std::span(text.data(), text.size())), hash);
}

}  // namespace rota
