// cpu_mxfp4_bf16, cpu_nvfp4_bf16, cpu_fp8_bf16, cpu_bf16: weights of one format, exact and where
// they lie in the checkpoint, times inputs in BF16 (or in float32, where --dtype asks for it), by
// the vector kernels. cpu_mxfp4_int8, cpu_nvfp4_int8: the same weights times inputs in 8 bits,
// whatever --dtype is. Faster from a few tokens an expert on, and less exact: docs/backends.md has
// the loss.
#include <fmt/format.h>

#include "moe/experts/backends.h"
#include "moe/experts/grouped.h"

namespace rota {
namespace {

class CpuBf16 : public GroupedExperts {
 public:
  CpuBf16(std::string_view name, WeightFormat format) : name_(name), format_(format) {}

  std::string_view name() const override { return name_; }

  std::optional<std::string> refuse_machine(const BackendContext& context) const override {
    return refuse_without_vectors(context);
  }

  std::optional<std::string> refuse(const MoeConfig& config,
                                    const BackendContext& context) const override {
    if (auto reason = refuse_machine(context)) return reason;
    if (config.format != format_) {
      return fmt::format("takes {} weights, these are {}", to_string(format_),
                         to_string(config.format));
    }
    if (auto reason = refuse_partial_blocks(config)) return reason;
    return refuse_activation(config);
  }

  ExpertsAlignment alignment(const MoeConfig& config) const override {
    return {.hidden = config.code_block(), .intermediate = config.code_block()};
  }

  const KernelTable* kernels(const KernelTable* best) const override { return best; }

 private:
  std::string_view name_;
  WeightFormat format_;
};

class CpuInt8 final : public CpuBf16 {
 public:
  using CpuBf16::CpuBf16;

  std::optional<std::string> only_by_name() const override {
    return "chosen only by name: it rounds activations to 8 bits";
  }
  Compute compute(Compute /*wanted*/) const override { return Compute::kInt8; }
};

}  // namespace

const ExpertsBackend& cpu_mxfp4_bf16_backend() {
  static const CpuBf16 backend("cpu_mxfp4_bf16", WeightFormat::kMxfp4);
  return backend;
}
const ExpertsBackend& cpu_nvfp4_bf16_backend() {
  static const CpuBf16 backend("cpu_nvfp4_bf16", WeightFormat::kNvfp4);
  return backend;
}
const ExpertsBackend& cpu_mxfp4_int8_backend() {
  static const CpuInt8 backend("cpu_mxfp4_int8", WeightFormat::kMxfp4);
  return backend;
}
const ExpertsBackend& cpu_nvfp4_int8_backend() {
  static const CpuInt8 backend("cpu_nvfp4_int8", WeightFormat::kNvfp4);
  return backend;
}
const ExpertsBackend& cpu_bf16_backend() {
  static const CpuBf16 backend("cpu_bf16", WeightFormat::kBf16);
  return backend;
}
const ExpertsBackend& cpu_fp8_bf16_backend() {
  static const CpuBf16 backend("cpu_fp8_bf16", WeightFormat::kFp8);
  return backend;
}

}  // namespace rota
