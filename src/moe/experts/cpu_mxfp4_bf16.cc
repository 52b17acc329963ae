// cpu_mxfp4_bf16: MXFP4 weights, read in the checkpoint's own blocks, times inputs in BF16 (or in
// float32, where --dtype asks for it), by the vector kernels.
#include "moe/experts/backends.h"
#include "moe/experts/grouped.h"
#include "quant/mxfp4.h"

namespace rota {
namespace {

class CpuMxfp4Bf16 final : public GroupedExperts {
 public:
  std::string_view name() const override { return "cpu_mxfp4_bf16"; }

  std::optional<std::string> refuse_machine(const BackendContext& context) const override {
    return refuse_without_vectors(context);
  }

  std::optional<std::string> refuse(const MoeConfig& config,
                                    const BackendContext& context) const override {
    if (auto reason = refuse_machine(context)) return reason;
    if (config.format != WeightFormat::kMxfp4) return "takes MXFP4 weights, these are not";
    if (auto reason = refuse_partial_blocks(config)) return reason;
    return refuse_activation(config);
  }

  ExpertsAlignment alignment(const MoeConfig&) const override {
    return {.hidden = kMxfp4BlockElements, .intermediate = kMxfp4BlockElements};
  }

  const KernelTable* kernels(const KernelTable* best) const override { return best; }
};

}  // namespace

const ExpertsBackend& cpu_mxfp4_bf16_backend() {
  static const CpuMxfp4Bf16 backend;
  return backend;
}

}  // namespace rota
