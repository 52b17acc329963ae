#include "engine/tensor_census.h"

#include <initializer_list>

namespace rota {
namespace {

bool has(std::string_view name, std::initializer_list<std::string_view> pieces) {
  for (const std::string_view piece : pieces) {
    if (name.find(piece) != std::string_view::npos) return true;
  }
  return false;
}

int64_t elements(const TensorSpec& tensor) {
  int64_t count = 1;
  for (const int64_t side : tensor.shape) count *= side;
  return count;
}

int64_t weights_of(const TensorSpec& tensor) {
  if (tensor.shape.size() < 2 || has(tensor.name, {"scale", "bias"})) return 0;
  return elements(tensor) * (tensor.dtype == DType::kU8 ? 2 : 1);
}

}  // namespace

std::string_view to_string(ModelPart part) {
  static constexpr std::array<std::string_view, kModelParts> kNames = {
      "embedding", "queries", "keys_values", "recurrent", "router",
      "latent",    "shared",  "experts",     "lm_head",   "other"};
  return kNames[static_cast<size_t>(part)];
}

ModelPart part_of(std::string_view tensor) {
  if (has(tensor, {".shared_expert"})) return ModelPart::kShared;
  if (has(tensor, {".experts."})) return ModelPart::kExperts;
  if (has(tensor, {"latent_proj"})) return ModelPart::kLatent;
  if (has(tensor, {"norm"})) return ModelPart::kOther;
  if (has(tensor, {"embed"})) return ModelPart::kEmbedding;
  if (has(tensor, {"lm_head"})) return ModelPart::kLmHead;
  if (has(tensor, {".q_proj", ".o_proj", ".sinks"})) return ModelPart::kQueries;
  if (has(tensor, {".k_proj", ".v_proj"})) return ModelPart::kKeyValues;
  if (has(tensor, {".in_proj", ".out_proj", ".conv1d", ".A_log", ".dt_bias", "mixer.D"})) {
    return ModelPart::kRecurrent;
  }
  if (has(tensor, {".router.", ".gate."})) return ModelPart::kRouter;
  return ModelPart::kOther;
}

TensorCensus take_census(std::span<const TensorSpec> tensors) {
  TensorCensus census;
  for (const TensorSpec& tensor : tensors) {
    const ModelPart part = part_of(tensor.name);
    PartSize& size = census.parts[static_cast<size_t>(part)];
    const int64_t bytes = elements(tensor) * size_of(tensor.dtype).count;
    size.bytes += bytes;
    size.weights += weights_of(tensor);
    census.bytes += bytes;
    const bool one_a_layer = part == ModelPart::kRouter && tensor.name.ends_with(".weight");
    census.moe_layers += one_a_layer ? 1 : 0;
  }
  return census;
}

}  // namespace rota
