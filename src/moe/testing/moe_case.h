// For tests: a mixture layer of a checkpoint, built for one kernel table, and run.
//
//   MoeModel model = golden_model("gptoss-mxfp4-h160");
//   MoeCase moe(model, 0, {.kernels = &kernels, .compute = Compute::kFloat32});
//   std::vector<float> out = moe.run(x, tokens);
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/expected_tensors.h"
#include "moe/runner.h"
#include "tensor/testing/golden_file.h"

namespace rota::testing {

struct MoeModel {
  ModelConfig config;
  Checkpoint checkpoint;
};

inline MoeModel golden_model(const std::string& name) {
  const std::string dir = golden_path("models/" + name);
  auto config = read_model_config(dir);
  ROTA_CHECK(config.ok(), config.status().message());
  auto checkpoint = Checkpoint::open(dir);
  ROTA_CHECK(checkpoint.ok(), checkpoint.status().message());
  return {std::move(config).value(), std::move(checkpoint).value()};
}

// The model layer that holds the index-th mixture.
inline int64_t mixture_layer(const ModelConfig& config, int64_t index) {
  int64_t layer = 0;
  while (!config.has_moe(layer) || index-- > 0) ++layer;
  return layer;
}

// Random weights of the given shape; the first mixture only.
inline MoeModel random_model(const ModelConfig& config, uint64_t seed = 0) {
  std::vector<TensorSpec> specs;
  for (TensorSpec& spec : expected_tensors(config)) {
    const bool mixture = spec.name.find(".mlp.") != std::string::npos ||
                         spec.name.find(".mixer.") != std::string::npos ||
                         spec.name.find(".block_sparse_moe.") != std::string::npos;
    const std::string layer = fmt::format("layers.{}.", mixture_layer(config, 0));
    if (mixture && spec.name.find(layer) != std::string::npos) specs.push_back(spec);
  }
  auto checkpoint = Checkpoint::dummy(specs, seed);
  ROTA_CHECK(checkpoint.ok(), checkpoint.status().message());
  return {config, std::move(checkpoint).value()};
}

struct MoeCaseOptions {
  const KernelTable* kernels = nullptr;
  Compute compute = Compute::kFloat32;
  MoeOptions moe = {};
  int threads = 2;
  int64_t max_tokens = 64;
  Bytes max_workspace = kMoeWorkspace;
};

class MoeCase : public MoeTrace {
 public:
  // mixture: the how manieth of the model's.
  MoeCase(const MoeModel& model, int64_t mixture, const MoeCaseOptions& options)
      : hidden_(model.config.hidden), team_({.threads = options.threads, .pin = false}) {
    const BackendContext context{
        .cpu = detect_cpu(), .isa = options.kernels->isa, .compute = options.compute};
    auto plan = plan_moe(moe_config(model.config), options.moe, context);
    ROTA_CHECK(plan.ok(), plan.status().message());
    plan_ = std::make_unique<MoePlan>(std::move(plan).value());
    auto loaded = MoeLayer::load(
        model.checkpoint,
        moe_tensor_names(model.config.architecture, mixture_layer(model.config, mixture)),
        {.config = &plan_->config,
         .plan = &plan_->widths,
         .map = ExpertMap::whole(model.config.experts),
         .compute = options.compute,
         .quant = &model.config.quant});
    ROTA_CHECK(loaded.ok(), loaded.status().message());
    layer_.emplace(std::move(loaded).value());
    auto runner =
        MoeRunner::make(*plan_, *options.kernels, team_, options.max_tokens, options.max_workspace);
    ROTA_CHECK(runner.ok(), runner.status().message());
    runner_.emplace(std::move(runner).value());
  }

  Status try_run(std::span<const float> x, std::span<float> out) {
    const int64_t tokens = static_cast<int64_t>(x.size()) / hidden_;
    return runner_->run(*layer_,
                        MatrixView<const float>(x.data(), tokens, Extent(hidden_), hidden_),
                        MatrixView<float>(out.data(), tokens, Extent(hidden_), hidden_), this);
  }

  std::vector<float> run(std::span<const float> x) {
    std::vector<float> out(x.size(), NAN);
    const Status status = try_run(x, out);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }

  void routed(const TopK& topk) override {
    const auto slots = static_cast<size_t>(topk.tokens * topk.k);
    ids.assign(topk.ids, topk.ids + slots);
    weights.assign(topk.weights, topk.weights + slots);
  }

  void parts(MatrixView<const float> routed_sum, MatrixView<const float> shared_out) override {
    copy(routed_sum, routed_rows);
    copy(shared_out, shared_rows);
  }

  const MoePlan& plan() const { return *plan_; }
  const MoeLayer& layer() const { return *layer_; }
  MoeRunner& runner() { return *runner_; }

  std::vector<int32_t> ids;  // of the last run
  std::vector<float> weights;
  std::vector<float> routed_rows;  // where there is a shared expert
  std::vector<float> shared_rows;

 private:
  static void copy(MatrixView<const float> from, std::vector<float>& to) {
    to.clear();
    for (int64_t row = 0; row < from.rows(); ++row) {
      to.insert(to.end(), from.row(row).begin(), from.row(row).end());
    }
  }

  int64_t hidden_;
  ThreadTeam team_;
  std::unique_ptr<MoePlan> plan_;
  std::optional<MoeLayer> layer_;
  std::optional<MoeRunner> runner_;
};

inline std::vector<float> random_rows(int64_t tokens, int64_t width, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<size_t>(tokens * width));
  for (float& value : rows) value = normal(random);
  return rows;
}

inline double relative_rms(std::span<const float> got, std::span<const float> expected) {
  double error = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = double{got[i]} - double{expected[i]};
    error += difference * difference;
    size += double{expected[i]} * double{expected[i]};
  }
  return std::sqrt(error / size);
}

}  // namespace rota::testing
