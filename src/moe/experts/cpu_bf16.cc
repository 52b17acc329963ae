// cpu_bf16: BF16 weights in either order, where they lie, times inputs in BF16 (or in float32,
// where --dtype asks for it), by the vector kernels.
#include "moe/experts/backends.h"
#include "moe/experts/grouped.h"

namespace rota {
namespace {

class CpuBf16 final : public GroupedExperts {
 public:
  std::string_view name() const override { return "cpu_bf16"; }

  std::optional<std::string> refuse_machine(const BackendContext& context) const override {
    return refuse_without_vectors(context);
  }

  std::optional<std::string> refuse(const MoeConfig& config,
                                    const BackendContext& context) const override {
    if (auto reason = refuse_machine(context)) return reason;
    if (config.format != WeightFormat::kBf16) return "takes BF16 weights, these are not";
    return refuse_activation(config);
  }

  // The kernels take any width.
  ExpertsAlignment alignment(const MoeConfig&) const override { return {}; }

  const KernelTable* kernels(const KernelTable* best) const override { return best; }
};

}  // namespace

const ExpertsBackend& cpu_bf16_backend() {
  static const CpuBf16 backend;
  return backend;
}

}  // namespace rota
