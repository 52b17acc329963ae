#include "moe/router_weights.h"

#include <array>

#include "checkpoint/linear.h"
#include "checkpoint/scan_scales.h"

namespace rota {
namespace {

// A tensor whose rows belong to one expert each.
Result<TensorInfo> require_finite(const Checkpoint& checkpoint, const std::string& name,
                                  std::span<const DType> dtypes, std::span<const int64_t> shape) {
  ROTA_ASSIGN_OR_RETURN(TensorInfo tensor, checkpoint.require(name, dtypes, shape));
  const auto at = find_not_finite(tensor);
  if (!at) return tensor;
  const int64_t columns = shape.size() > 1 ? shape.back() : 1;
  return error(StatusCode::kDataLoss,
               "{}: tensor {}: expert {}, column {} is {}, expected a finite number: the router "
               "would never choose that expert; the file is damaged, get it again",
               tensor.file, tensor.name, *at / columns, *at % columns,
               to_floats(tensor)[static_cast<size_t>(*at)]);
}

}  // namespace

Result<RouterWeights> RouterWeights::load(const Checkpoint& checkpoint, const MoeTensorNames& names,
                                          const MoeConfig& config) {
  static constexpr std::array<DType, 2> kEither = {DType::kBf16, DType::kF32};
  static constexpr std::array<DType, 1> kBf16Alone = {DType::kBf16};
  const std::array<int64_t, 2> shape = {config.router.experts, config.hidden};
  const auto one_each = std::span(shape).first(1);
  RouterWeights router;
  ROTA_ASSIGN_OR_RETURN(const TensorInfo weight,
                        require_finite(checkpoint, names.router_weight, kEither, shape));
  router.matrix.format =
      weight.dtype == DType::kBf16 ? WeightFormat::kBf16 : WeightFormat::kFloat32;
  router.matrix.out = Extent(config.router.experts);
  router.matrix.in = Extent(config.hidden);
  router.matrix.data = weight.bytes.data();
  router.matrix.row_stride = size_of(weight.dtype) * config.hidden;
  router.bytes = Bytes{weight.byte_size};
  if (config.router_bias) {
    ROTA_ASSIGN_OR_RETURN(const TensorInfo bias,
                          require_finite(checkpoint, names.router_bias, kBf16Alone, one_each));
    router.matrix.bias = bias.as<Bf16>().data();
    router.bytes = router.bytes + Bytes{bias.byte_size};
  }
  if (config.router_correction_bias) {
    ROTA_ASSIGN_OR_RETURN(const TensorInfo bias,
                          require_finite(checkpoint, names.correction_bias, kEither, one_each));
    router.correction_bias = to_floats(bias);
    router.bytes = router.bytes + Bytes{bias.byte_size};
  }
  return router;
}

}  // namespace rota
