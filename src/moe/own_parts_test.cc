#include "moe/own_parts.h"

#include <gtest/gtest.h>

namespace rota {
namespace {

using Parts = std::vector<std::pair<int64_t, int64_t>>;

// Of a tensor of 600 bytes; nothing: every rank reads it.
std::optional<Parts> parts(const ExpertMap& map, const char* name, std::vector<int64_t> shape) {
  const auto found = own_parts(map)({name, DType::kU8, std::move(shape)}, 600);
  if (!found) return std::nullopt;
  Parts result;
  for (const TensorPart& part : *found) result.emplace_back(part.begin, part.end);
  return result;
}

ExpertMap second_of_three(ExpertPlacement placement) {
  return *ExpertMap::make(6, 3, 1, placement);
}

TEST(OwnParts, OfAStackAreItsExpertsNeighboursInOnePiece) {
  const char* name = "model.layers.0.mlp.experts.down_proj_blocks";
  EXPECT_EQ(parts(second_of_three(ExpertPlacement::kLinear), name, {6, 100}), (Parts{{200, 400}}));
  EXPECT_EQ(parts(second_of_three(ExpertPlacement::kRoundRobin), name, {6, 100}),
            (Parts{{100, 200}, {400, 500}}));
}

TEST(OwnParts, OfAnExpertsOwnTensorAreAllOrNone) {
  const ExpertMap map = second_of_three(ExpertPlacement::kLinear);
  EXPECT_EQ(parts(map, "backbone.layers.1.mixer.experts.3.up_proj.weight", {10, 60}),
            (Parts{{0, 600}}));
  EXPECT_EQ(parts(map, "backbone.layers.1.mixer.experts.30.up_proj.weight", {10, 60}), Parts{});
  EXPECT_EQ(parts(map, "model.layers.0.mlp.experts.0.down_proj.weight", {10, 60}), Parts{});
}

TEST(OwnParts, OfWhatIsNoRoutedExpertAreEverybodys) {
  const ExpertMap map = second_of_three(ExpertPlacement::kLinear);
  for (const char* name : {"model.embed_tokens.weight", "model.layers.0.mlp.router.weight",
                           "backbone.layers.1.mixer.shared_experts.up_proj.weight"}) {
    EXPECT_EQ(parts(map, name, {6, 100}), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace rota
