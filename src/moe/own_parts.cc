#include "moe/own_parts.h"

#include <charconv>

namespace rota {
namespace {

// What follows "experts." in a name, where that is a module of its own; or nothing.
std::optional<std::string_view> behind_experts(std::string_view name) {
  constexpr std::string_view kModule = "experts.";
  const size_t at = name.find(kModule);
  if (at == std::string_view::npos || (at > 0 && name[at - 1] != '.')) return std::nullopt;
  return name.substr(at + kModule.size());
}

std::optional<int64_t> number_at(std::string_view text) {
  int64_t number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failed != std::errc() || end == text.data() + text.size() || *end != '.') return std::nullopt;
  return number;
}

// Neighbours are one part.
std::vector<TensorPart> parts_of_stack(const ExpertMap& map, int64_t bytes) {
  const int64_t one = bytes / map.experts();
  std::vector<TensorPart> parts;
  for (int64_t expert = 0; expert < map.experts(); ++expert) {
    if (!map.local(expert)) continue;
    if (parts.empty() || parts.back().end < expert * one) parts.push_back({expert * one, 0});
    parts.back().end = (expert + 1) * one;
  }
  return parts;
}

}  // namespace

OwnParts own_parts(const ExpertMap& map) {
  return [map](const TensorSpec& tensor, int64_t bytes) -> std::optional<std::vector<TensorPart>> {
    const std::optional<std::string_view> rest = behind_experts(tensor.name);
    if (!rest) return std::nullopt;
    if (const auto expert = number_at(*rest)) {
      return map.local(*expert) ? std::vector<TensorPart>{{0, bytes}} : std::vector<TensorPart>{};
    }
    if (tensor.shape.empty() || tensor.shape[0] != map.experts()) return std::nullopt;
    return parts_of_stack(map, bytes);
  };
}

}  // namespace rota
