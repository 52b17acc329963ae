// What the command line says about mixture layers: --moe-backend, --moe-hidden-alignment and
// --moe-intermediate-alignment.
//
// Alignment can be raised so that every padded case runs on any machine; results do not change by a
// bit. A backend that is named and cannot serve is an error that says why.
#pragma once

#include <cstdint>
#include <string>

namespace rota {

inline constexpr int64_t kMaxMoeAlignment = 1 << 16;  // elements

struct MoeOptions {
  std::string backend;                 // empty or "auto": the first of the list that can serve
  int64_t hidden_alignment = 0;        // elements; 0: what the backend needs
  int64_t intermediate_alignment = 0;  // elements; 0: what the backend needs
};

}  // namespace rota
