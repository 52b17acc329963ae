// The batched activation format: the same bits for a token and expert as in the standard one,
// whatever lies in the empty places.
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "moe/testing/moe_case.h"

namespace rota {
namespace {

constexpr int64_t kTokens = 9, kPlaces = 9;

// One run of a backend, and the memory that its output lies in.
struct Ran {
  Buffer workspace;
  ExpertsOutput output;
};

class Batched : public ::testing::TestWithParam<const char*> {
 protected:
  Batched()
      : model_(testing::golden_model(GetParam())),
        kernels_(*available_kernels(detect_cpu()).back()),
        team_({.threads = 2, .pin = false}),
        plan_(*plan_moe(moe_config(model_.config), {},
                        {.cpu = detect_cpu(), .isa = kernels_.isa, .compute = Compute::kBf16})),
        layer_(*MoeLayer::load(
            model_.checkpoint,
            moe_tensor_names(model_.config.architecture, testing::mixture_layer(model_.config, 0)),
            {.config = &plan_.config,
             .plan = &plan_.widths,
             .map = ExpertMap::whole(model_.config.experts),
             .quant = &model_.config.quant})),
        sizing_{.config = &plan_.config,
                .plan = &plan_.widths,
                .kernels = &kernels_,
                .local_experts = model_.config.experts,
                .tokens = kTokens,
                .places = model_.config.experts * kPlaces,
                .threads = team_.size()},
        width_(plan_.widths.dispatch.logical()) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    x_.resize(static_cast<size_t>(kTokens * width_));
    for (float& value : x_) value = normal(random);
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t s = 0; s < plan_.config.router.top_k; ++s) {
        ids_.push_back(static_cast<int32_t>((t * t + 2 * s) % model_.config.experts));
      }
    }
    weights_.assign(ids_.size(), 1.0f);
  }

  Ran run(ExpertsRun args) {
    const ExpertsBackend& backend = *plan_.choice.backend;
    const auto bytes = static_cast<size_t>(backend.workspace_bytes(sizing_).count);
    Buffer workspace = Buffer::allocate(bytes, Fill::kUnspecified).value();
    args.sizing = &sizing_;
    args.layer = &layer_;
    args.team = &team_;
    args.workspace = {workspace.data(), workspace.size()};
    const ExpertsOutput output = backend.run(args).value();
    return {std::move(workspace), output};
  }

  MatrixView<const float> view(const std::vector<float>& rows) const {
    return {rows.data(), static_cast<int64_t>(rows.size()) / width_, Extent(width_), width_};
  }

  testing::MoeModel model_;
  const KernelTable& kernels_;
  ThreadTeam team_;
  MoePlan plan_;
  MoeLayer layer_;
  ExpertsSizing sizing_;
  int64_t width_;
  std::vector<float> x_;
  std::vector<int32_t> ids_;
  std::vector<float> weights_;
};

INSTANTIATE_TEST_SUITE_P(Models, Batched,
                         ::testing::Values("gptoss-mxfp4-h160", "mixtral-bf16-h72",
                                           "qwen3-fp8-h288", "nemotron-nvfp4-h112"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(Batched, ATokenGetsTheBitsOfTheStandardFormat) {
  const int64_t k = plan_.config.router.top_k, experts = model_.config.experts;
  const Ran standard =
      run({.hidden = view(x_),
           .topk = {.ids = ids_.data(), .weights = weights_.data(), .tokens = kTokens, .k = k}});

  std::vector<float> places(static_cast<size_t>(experts * kPlaces * width_),
                            std::numeric_limits<float>::quiet_NaN());
  std::vector<int32_t> counts(static_cast<size_t>(experts), 0);
  std::vector<int64_t> place_of_slot;
  for (int64_t slot = 0; slot < kTokens * k; ++slot) {
    const int32_t expert = ids_[static_cast<size_t>(slot)];
    const int64_t place = expert * kPlaces + counts[static_cast<size_t>(expert)]++;
    place_of_slot.push_back(place);
    std::copy_n(x_.begin() + slot / k * width_, width_, places.begin() + place * width_);
  }
  const Ran batched =
      run({.hidden = view(places), .batched = BatchedTokens{.places = kPlaces, .counts = counts}});

  for (int64_t slot = 0; slot < kTokens * k; ++slot) {
    const auto want = standard.output.row(slot);
    const auto got = batched.output.row(place_of_slot[static_cast<size_t>(slot)]);
    ASSERT_TRUE(want && got) << slot;
    ASSERT_TRUE(std::equal(want->begin(), want->end(), got->begin(), got->end())) << slot;
  }
  EXPECT_EQ(batched.output.rows.rows(), kTokens * k);
  for (int64_t expert = 0; expert < experts; ++expert) {
    for (int64_t i = counts[static_cast<size_t>(expert)]; i < kPlaces; ++i) {
      EXPECT_FALSE(batched.output.row(expert * kPlaces + i).has_value());
    }
  }
}

}  // namespace
}  // namespace rota
