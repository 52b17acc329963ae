// What a model's weights are for, counted from its tensors: bytes, and elements that a token is
// multiplied with. The one place that tells parts of a model apart by the names of its tensors.
//
//   const TensorCensus census = take_census(expected_tensors(config));
//   census[ModelPart::kExperts].bytes        // of all experts of all layers
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "checkpoint/safetensors.h"

namespace rota {

enum class ModelPart {
  kEmbedding,
  kQueries,    // q and o: go with the query heads
  kKeyValues,  // k and v: go with the KV heads
  kRecurrent,  // Mamba2's projections and convolutions
  kRouter,
  kLatent,  // projections into the experts' width and back
  kShared,  // shared experts
  kExperts,
  kLmHead,
  kOther,  // norms
};
inline constexpr size_t kModelParts = 10;

std::string_view to_string(ModelPart part);

struct PartSize {
  int64_t bytes = 0;
  int64_t weights = 0;  // elements of matrices: a token costs 2 FLOP for each
};

struct TensorCensus {
  std::array<PartSize, kModelParts> parts;
  int64_t moe_layers = 0;
  int64_t bytes = 0;  // of all parts
  const PartSize& operator[](ModelPart part) const { return parts[static_cast<size_t>(part)]; }
};

ModelPart part_of(std::string_view tensor);

// Two elements a byte in U8 matrices (MXFP4, NVFP4); scales and biases are bytes alone.
TensorCensus take_census(std::span<const TensorSpec> tensors);

}  // namespace rota
