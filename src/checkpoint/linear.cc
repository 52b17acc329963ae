#include "checkpoint/linear.h"

#include <cmath>
#include <cstring>

#include "checkpoint/scan_scales.h"
#include "quant/nvfp4.h"

namespace rota {
namespace {

int64_t blocks(int64_t size, int64_t block) { return block == 0 ? 1 : (size + block - 1) / block; }

TensorSpec factor_spec(const LinearSource& source, std::string_view name) {
  TensorSpec spec{.name = fmt::format("{}.{}", source.module, name),
                  .dtype = DType::kF32,
                  .shape = {},
                  .is_factor = true};
  const LinearFormat& format = source.format;
  if (format.code == LinearCode::kFp8 && format.block_out > 0) {
    spec.shape = {blocks(source.out, format.block_out), blocks(source.in, format.block_in)};
  }
  return spec;
}

std::vector<TensorSpec> nvfp4_specs(const LinearSource& source) {
  const std::string weight = source.module + ".weight";
  return {{weight, DType::kU8, {source.out, source.in / 2}},
          {weight + "_scale", DType::kF8E4M3, {source.out, source.in / kNvfp4BlockElements}},
          factor_spec(source, "weight_scale_2")};
}

std::vector<TensorSpec> fp8_specs(const LinearSource& source) {
  const bool inverse = source.format.named_inverse;
  return {{source.module + ".weight", DType::kF8E4M3, {source.out, source.in}},
          factor_spec(source, inverse ? "weight_scale_inv" : "weight_scale")};
}

WeightFormat weight_format(LinearCode code) {
  switch (code) {
    case LinearCode::kFp8:
      return WeightFormat::kFp8;
    case LinearCode::kNvfp4:
      return WeightFormat::kNvfp4;
    case LinearCode::kMxfp4:
      return WeightFormat::kMxfp4;
    case LinearCode::kPlain:
      break;
  }
  return WeightFormat::kBf16;
}

// One factor for the whole matrix, for each row, or for each block.
BlockScales block_scales(const LinearSource& source, const float* data) {
  const LinearFormat& format = source.format;
  return {.data = data,
          .stride = blocks(source.in, format.block_in),
          .rows = format.block_out == 0 ? source.out : format.block_out,
          .columns = format.block_in == 0 ? source.in : format.block_in};
}

// A factor scales a block, a row or the whole matrix: one that is no number spoils all of that.
Status check_factors(const TensorInfo& tensor, std::span<const float> factors) {
  for (size_t i = 0; i < factors.size(); ++i) {
    if (std::isfinite(factors[i]) && !std::signbit(factors[i])) continue;
    return error(StatusCode::kDataLoss,
                 "{}: tensor {}: factor {} is {}, expected a finite number that is not negative; "
                 "the file is damaged, get it again",
                 tensor.file, tensor.name, i, factors[i]);
  }
  return {};
}

Status verify_linear(const Checkpoint& checkpoint, const LinearSource& source) {
  for (const TensorSpec& spec : linear_specs(source)) {
    if (spec.dtype != DType::kF8E4M3) continue;
    ROTA_ASSIGN_OR_RETURN(const TensorInfo tensor, checkpoint.require(spec));
    const ByteRegion all{.rows = tensor.shape[0], .columns = tensor.shape[1]};
    if (const auto bad = scan_bytes(tensor, all, kE4m3Limit)) return bad->status(tensor);
  }
  return {};
}

}  // namespace

std::vector<float> to_floats(const TensorInfo& tensor) {
  std::vector<float> floats(static_cast<size_t>(tensor.byte_size / size_of(tensor.dtype).count));
  if (tensor.dtype == DType::kF32) {
    std::memcpy(floats.data(), tensor.bytes.data(), floats.size() * sizeof(float));
  } else {
    const auto values = tensor.as<Bf16>();
    for (size_t i = 0; i < floats.size(); ++i) floats[i] = to_float(values[i]);
  }
  return floats;
}

std::span<const float> FactorStore::add(const TensorInfo& tensor) {
  const std::vector<float>& floats = values_.emplace_back(to_floats(tensor));
  bytes_ = bytes_ + Bytes{static_cast<int64_t>(floats.size() * sizeof(float))};
  return floats;
}

std::vector<TensorSpec> linear_specs(const LinearSource& source) {
  switch (source.format.code) {
    case LinearCode::kFp8:
      return fp8_specs(source);
    case LinearCode::kNvfp4:
      return nvfp4_specs(source);
    case LinearCode::kPlain:
    case LinearCode::kMxfp4:
      break;
  }
  return {{source.module + ".weight", DType::kBf16, {source.out, source.in}}};
}

Status check_linear(const LinearSource& source) {
  const LinearCode code = source.format.code;
  if (code == LinearCode::kMxfp4) {
    return error(StatusCode::kUnsupported,
                 "{}: a linear layer in MXFP4, which is served for stacked experts", source.module);
  }
  if (code == LinearCode::kNvfp4 && source.in % kNvfp4BlockElements != 0) {
    return invalid_argument("{}: NVFP4 over {} inputs, expected a multiple of {}", source.module,
                            source.in, kNvfp4BlockElements);
  }
  return {};
}

Result<WeightMatrix> load_linear(const Checkpoint& checkpoint, const LinearSource& source,
                                 FactorStore& factors) {
  ROTA_RETURN_IF_ERROR(check_linear(source));
  const LinearCode code = source.format.code;
  WeightMatrix matrix;
  matrix.format = weight_format(code);
  matrix.out = Extent(source.out);
  matrix.in = Extent(source.in);
  const std::vector<TensorSpec> specs = linear_specs(source);
  ROTA_ASSIGN_OR_RETURN(const TensorInfo weight, checkpoint.require(specs[0]));
  matrix.data = weight.bytes.data();
  matrix.row_stride = {weight.byte_size / source.out};
  if (code == LinearCode::kNvfp4) {
    ROTA_ASSIGN_OR_RETURN(const TensorInfo scales, checkpoint.require(specs[1]));
    matrix.scales = reinterpret_cast<const uint8_t*>(scales.bytes.data());
    matrix.scale_stride = {scales.byte_size / source.out};
  }
  if (code != LinearCode::kPlain) {
    ROTA_ASSIGN_OR_RETURN(const TensorInfo factor, checkpoint.require(specs.back()));
    const std::span<const float> values = factors.add(factor);
    ROTA_RETURN_IF_ERROR(check_factors(factor, values));
    matrix.factors = block_scales(source, values.data());
  }
  return matrix;
}

Status verify_linears(const Checkpoint& checkpoint, std::span<const LinearSource> sources,
                      ThreadTeam& team) {
  std::vector<Status> found(sources.size());
  team.parallel_for(std::ssize(sources), [&](int64_t item, int) {
    const auto at = static_cast<size_t>(item);
    found[at] = verify_linear(checkpoint, sources[at]);
  });
  for (Status& status : found) {
    if (!status.ok()) return std::move(status);
  }
  return {};
}

}  // namespace rota
