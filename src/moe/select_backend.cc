#include "moe/select_backend.h"

#include <fmt/format.h>

#include <array>

#include "moe/experts/backends.h"

namespace rota {
namespace {

std::string list_of_names() {
  std::string names;
  for (const ExpertsBackend* backend : experts_backends()) {
    if (!names.empty()) names += ", ";
    names += backend->name();
  }
  return names;
}

Result<BackendChoice> by_name(const MoeConfig& config, const BackendContext& context,
                              std::string_view wanted) {
  for (const ExpertsBackend* backend : experts_backends()) {
    if (backend->name() != wanted) continue;
    if (const auto reason = backend->refuse(config, context)) {
      return error(StatusCode::kUnsupported,
                   "--moe-backend {} cannot serve this model: {}; leave the flag out to take the "
                   "best one that can",
                   wanted, *reason);
    }
    return BackendChoice{.backend = backend, .refused = {}, .by_name = true};
  }
  return invalid_argument("--moe-backend {}: no such backend; expected auto or one of {}", wanted,
                          list_of_names());
}

}  // namespace

std::string BackendChoice::describe() const {
  std::string out(backend->name());
  if (by_name) return out + " (--moe-backend)";
  if (refused.empty()) return out;
  out += " (";
  for (size_t i = 0; i < refused.size(); ++i) {
    out +=
        fmt::format("{}{} refused: {}", i == 0 ? "" : "; ", refused[i].backend, refused[i].reason);
  }
  return out + ")";
}

std::span<const ExpertsBackend* const> experts_backends() {
  static const std::array<const ExpertsBackend*, 7> list = {&cpu_mxfp4_int8_backend(),
                                                            &cpu_mxfp4_bf16_backend(),
                                                            &cpu_nvfp4_int8_backend(),
                                                            &cpu_nvfp4_bf16_backend(),
                                                            &cpu_fp8_bf16_backend(),
                                                            &cpu_bf16_backend(),
                                                            &ref_backend()};
  return list;
}

Result<BackendChoice> select_backend(const MoeConfig& config, const BackendContext& context,
                                     std::string_view wanted) {
  if (!wanted.empty() && wanted != "auto") return by_name(config, context, wanted);
  BackendChoice choice;
  for (const ExpertsBackend* backend : experts_backends()) {
    auto reason = backend->refuse(config, context);
    if (!reason) reason = backend->only_by_name();
    if (!reason) {
      choice.backend = backend;
      return choice;
    }
    choice.refused.push_back({backend->name(), *reason});
  }
  std::string why;
  for (const BackendRefusal& refusal : choice.refused) {
    why += fmt::format("{}{}: {}", why.empty() ? "" : "; ", refusal.backend, refusal.reason);
  }
  return error(StatusCode::kUnsupported, "no experts backend can serve this model: {}", why);
}

}  // namespace rota
