// ref: every format, by the scalar kernels, whatever the ISA: the oracle and the last resort.
#include "moe/experts/backends.h"
#include "moe/experts/grouped.h"

namespace rota {
namespace {

class Ref final : public GroupedExperts {
 public:
  std::string_view name() const override { return "ref"; }

  std::optional<std::string> refuse_machine(const BackendContext&) const override {
    return std::nullopt;
  }

  std::optional<std::string> refuse(const MoeConfig& config, const BackendContext&) const override {
    if (auto reason = refuse_partial_blocks(config)) return reason;
    return refuse_activation(config);
  }

  ExpertsAlignment alignment(const MoeConfig& config) const override {
    return {.hidden = config.code_block(), .intermediate = config.code_block()};
  }

  const KernelTable* kernels(const KernelTable*) const override {
    return &kernels_for(Isa::kRef, CpuFeatures{});
  }
};

}  // namespace

const ExpertsBackend& ref_backend() {
  static const Ref backend;
  return backend;
}

}  // namespace rota
