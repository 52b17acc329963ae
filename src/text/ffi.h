// Shared by the files that call the Rust library: views, owned messages, status codes.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "text/rust/rota_text.h"

namespace rota::ffi {

inline RotaView view(std::string_view text) { return {text.data(), text.size()}; }

// Copies the buffer and gives it back.
inline std::string take(RotaBuffer buffer) {
  std::string text(buffer.data, buffer.size);
  rota_text_free_buffer(buffer);
  return text;
}

// "WHAT: message" for a call that failed.
Status failure(RotaTextCode code, std::string_view what, std::string_view message);

}  // namespace rota::ffi
