#include "golden/cases.h"

#include <algorithm>
#include <random>

#include "golden/golden_pack.h"
#include "moe/plan.h"

namespace rota::golden {
namespace {

// Experts backends that do not refuse this case.
std::vector<std::string> serving_backends(const Case& c) {
  const auto config = read_model_config(small_pack_dir(c.pack));
  ROTA_CHECK(config.ok(), config.status().message());
  const BackendContext context{.cpu = detect_cpu(), .isa = c.kernels->isa, .compute = c.compute};
  std::vector<std::string> names;
  for (const ExpertsBackend* backend : experts_backends()) {
    if (!backend->refuse(moe_config(*config), context)) names.emplace_back(backend->name());
  }
  return names;
}

}  // namespace

std::string Case::name() const {
  std::string name = pack + "_" + kernels->name +
                     (compute == Compute::kBf16 ? "_bfloat16" : "_float32") +
                     (moe.backend.empty() ? "" : "_" + moe.backend);
  if (moe.hidden_alignment != 0 || moe.intermediate_alignment != 0) {
    name += fmt::format("_h{}_i{}", moe.hidden_alignment, moe.intermediate_alignment);
  }
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

HarnessOptions Case::options() const {
  HarnessOptions options;
  options.kernels = kernels;
  options.compute = compute;
  options.moe = moe;
  return options;
}

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name(); }

std::vector<Case> pack_cases(Compute compute) {
  std::vector<Case> cases;
  for (const std::string& pack : small_packs()) {
    for (const KernelTable* kernels : available_kernels(detect_cpu())) {
      cases.push_back({.pack = pack, .kernels = kernels, .compute = compute, .moe = {}});
    }
  }
  return cases;
}

std::vector<Case> int8_cases() {
  std::vector<Case> cases;
  for (const Compute compute : {Compute::kFloat32, Compute::kBf16}) {
    for (Case c : pack_cases(compute)) {
      for (const std::string& backend : serving_backends(c)) {
        if (!backend.ends_with("_int8")) continue;
        c.moe = {.backend = backend};
        cases.push_back(c);
      }
    }
  }
  return cases;
}

std::vector<Case> sampled(std::vector<Case> cases, size_t sample) {
  if (full_grid() || cases.size() <= sample) return cases;
  std::shuffle(cases.begin(), cases.end(), std::mt19937(20240611));
  cases.resize(sample);
  return cases;
}

std::vector<Case> padding_cases(size_t sample) {
  std::vector<Case> cases;
  for (const Compute compute : {Compute::kFloat32, Compute::kBf16}) {
    for (Case c : pack_cases(compute)) {
      for (const std::string& backend : serving_backends(c)) {
        for (const int64_t hidden : {0, 256, 512}) {
          for (const int64_t intermediate : {0, 128, 256}) {
            if (hidden == 0 && intermediate == 0) continue;
            c.moe = {.backend = backend,
                     .hidden_alignment = hidden,
                     .intermediate_alignment = intermediate};
            cases.push_back(c);
          }
        }
      }
    }
  }
  return sampled(std::move(cases), sample);
}

}  // namespace rota::golden
