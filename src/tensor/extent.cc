#include "tensor/extent.h"

#include <fmt/format.h>

namespace rota {

std::string to_string(Extent extent) {
  if (!extent.is_padded()) return fmt::format("{}", extent.logical());
  return fmt::format("{} -> {}", extent.logical(), extent.padded());
}

}  // namespace rota
