#include "moe/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "checkpoint/quant_config.h"
#include "moe/testing/moe_case.h"

namespace rota {
namespace {

using testing::MoeCase;
using testing::MoeCaseOptions;
using testing::MoeModel;
using testing::random_rows;

// Bit for bit; NaN is no match for itself, so a leaked poison fails as well.
::testing::AssertionResult same_bits(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " != " << b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(a[i] == b[i]) || std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " != " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

using Param = std::tuple<const char*, const KernelTable*>;

std::string param_name(const ::testing::TestParamInfo<Param>& info) {
  std::string name = std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param)->name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class Runner : public ::testing::TestWithParam<Param> {
 protected:
  Runner() : name_(std::get<0>(GetParam())), model_(testing::golden_model(name_)) {}
  const KernelTable& kernels() const { return *std::get<1>(GetParam()); }
  MoeCaseOptions options(Compute compute) const {
    return {.kernels = &kernels(), .compute = compute};
  }

  std::string name_;
  MoeModel model_;
};

INSTANTIATE_TEST_SUITE_P(
    Goldens, Runner,
    ::testing::Combine(::testing::Values("gptoss-mxfp4-h160", "gptoss-mxfp4-h288",
                                         "gptoss-bf16-h160", "mixtral-bf16-h72", "qwen3-bf16-h160",
                                         "nemotron-bf16-h336", "nemotron-latent-bf16-h112"),
                       ::testing::ValuesIn(available_kernels(detect_cpu()))),
    param_name);

void expect_routing(const testing::GoldenFile& golden, const std::string& prefix,
                    const MoeCase& moe, int64_t k) {
  const auto ids = golden.ints(prefix + ".ids");
  const auto weights = golden.floats(prefix + ".weights");
  ASSERT_EQ(moe.ids.size(), ids.size());
  // The goldens' slots are by falling weight; where a bias chooses, ours are by what it chose by.
  for (size_t first = 0; first < ids.size(); first += static_cast<size_t>(k)) {
    std::map<int32_t, float> found;
    for (size_t slot = first; slot < first + static_cast<size_t>(k); ++slot) {
      found[moe.ids[slot]] = moe.weights[slot];
    }
    for (size_t slot = first; slot < first + static_cast<size_t>(k); ++slot) {
      ASSERT_TRUE(found.contains(ids[slot])) << "slot " << slot;
      EXPECT_NEAR(found[ids[slot]], weights[slot], 1e-4) << "slot " << slot;
    }
  }
}

// Of the model layer that holds the index-th mixture: "p7.moe.1".
std::string block_name(const MoeModel& model, int64_t index) {
  return fmt::format("p7.moe.{}", testing::mixture_layer(model.config, index));
}

TEST_P(Runner, AgreesWithTheGoldenBlock) {
  const testing::GoldenFile golden(testing::golden_path("models/" + name_ + "/golden.safetensors"));
  for (const int64_t index : {0, 1}) {
    MoeCase moe(model_, index, options(Compute::kFloat32));
    const std::string block = block_name(model_, index);
    const std::vector<float> out = moe.run(golden.floats(block + ".in"));
    EXPECT_LT(testing::relative_rms(out, golden.floats(block + ".out")), 1e-4) << block;
    const int64_t layer = testing::mixture_layer(model_.config, index);
    expect_routing(golden, fmt::format("p7.router.{}", layer), moe, model_.config.top_k);
    EXPECT_EQ(golden.has(block + ".shared"), model_.config.shared_intermediate > 0);
    if (!golden.has(block + ".shared")) continue;
    EXPECT_LT(testing::relative_rms(moe.routed_rows, golden.floats(block + ".routed")), 1e-4);
    EXPECT_LT(testing::relative_rms(moe.shared_rows, golden.floats(block + ".shared")), 1e-4);
  }
}

TEST_P(Runner, Bf16InputsStayNearTheGoldenBlock) {
  const testing::GoldenFile golden(testing::golden_path("models/" + name_ + "/golden.safetensors"));
  MoeCase moe(model_, 0, options(Compute::kBf16));
  const std::vector<float> out = moe.run(golden.floats(block_name(model_, 0) + ".in"));
  EXPECT_LT(testing::relative_rms(out, golden.floats(block_name(model_, 0) + ".out")), 1e-2);
}

TEST_P(Runner, TheRefBackendServesUnderEveryIsa) {
  const testing::GoldenFile golden(testing::golden_path("models/" + name_ + "/golden.safetensors"));
  MoeCaseOptions wanted = options(Compute::kFloat32);
  wanted.moe.backend = "ref";
  MoeCase moe(model_, 0, wanted);
  EXPECT_EQ(moe.plan().choice.backend->name(), "ref");
  const std::vector<float> out = moe.run(golden.floats(block_name(model_, 0) + ".in"));
  EXPECT_LT(testing::relative_rms(out, golden.floats(block_name(model_, 0) + ".out")), 1e-4);
}

// Every padded run gives the bits of the unpadded one.
TEST_P(Runner, PaddingChangesNoBit) {
  const std::vector<float> x = random_rows(20, model_.config.hidden, 1);
  for (const Compute compute : {Compute::kFloat32, Compute::kBf16}) {
    const std::vector<float> unpadded = MoeCase(model_, 0, options(compute)).run(x);
    for (const int64_t hidden : {0, 256, 512}) {
      for (const int64_t intermediate : {0, 128, 256}) {
        MoeCaseOptions padded = options(compute);
        padded.moe.hidden_alignment = hidden;
        padded.moe.intermediate_alignment = intermediate;
        EXPECT_TRUE(same_bits(MoeCase(model_, 0, padded).run(x), unpadded))
            << "hidden " << hidden << ", intermediate " << intermediate;
      }
    }
  }
}

// A token alone, in a batch, in pieces, over any number of threads and passes: the same bits.
TEST_P(Runner, ATokenDoesNotSeeTheBatch) {
  const int64_t hidden = model_.config.hidden;
  constexpr int64_t kTokens = 40;
  const std::vector<float> x = random_rows(kTokens, hidden, 2);
  for (const Compute compute : {Compute::kFloat32, Compute::kBf16}) {
    MoeCase whole_case(model_, 0, options(compute));
    const std::vector<float> whole = whole_case.run(x);
    for (const int64_t piece : {1, 2, 3, 16, 17}) {
      std::vector<float> pieces;
      for (int64_t first = 0; first < kTokens; first += piece) {
        const auto at = static_cast<size_t>(first * hidden);
        const auto count = static_cast<size_t>(std::min(piece, kTokens - first) * hidden);
        const auto out = whole_case.run(std::span<const float>(x).subspan(at, count));
        pieces.insert(pieces.end(), out.begin(), out.end());
      }
      EXPECT_TRUE(same_bits(pieces, whole)) << "pieces of " << piece;
    }
    for (const int threads : {1, 3}) {
      MoeCaseOptions other = options(compute);
      other.threads = threads;
      EXPECT_TRUE(same_bits(MoeCase(model_, 0, other).run(x), whole)) << threads << " threads";
    }
    MoeCaseOptions passes = options(compute);
    passes.max_workspace = Bytes{1};
    EXPECT_TRUE(same_bits(MoeCase(model_, 0, passes).run(x), whole)) << "one token a pass";
  }
}

TEST_P(Runner, NoTokensIsNothingToDo) {
  MoeCase moe(model_, 0, options(Compute::kBf16));
  EXPECT_TRUE(moe.run({}).empty());
}

TEST_P(Runner, ServedTokensAreCounted) {
  MoeCase moe(model_, 0, options(Compute::kBf16));
  moe.run(random_rows(9, model_.config.hidden, 3));
  moe.run(random_rows(1, model_.config.hidden, 4));
  int64_t total = 0;
  for (const int64_t count : moe.layer().served()) total += count;
  EXPECT_EQ(total, 10 * model_.config.top_k);
}

// A layer of the real widths, more rows for an expert than one block of work holds.
class RunnerWide : public ::testing::TestWithParam<const KernelTable*> {};
INSTANTIATE_TEST_SUITE_P(Isa, RunnerWide, ::testing::ValuesIn(available_kernels(detect_cpu())),
                         [](const auto& info) { return std::string(info.param->name); });

ModelConfig gpt_oss_config(int64_t hidden, int64_t intermediate, QuantMethod method) {
  ModelConfig config = testing::golden_model("gptoss-mxfp4-h160").config;
  config.hidden = hidden;
  config.intermediate = intermediate;
  config.experts = 3;
  config.top_k = 2;
  config.quant.method = method;
  ROTA_CHECK(resolve_quantization(config, "test").ok(), "a format for these widths");
  return config;
}

TEST_P(RunnerWide, ManyRowsForAnExpertGiveTheBitsOfFew) {
  for (const QuantMethod method : {QuantMethod::kMxfp4, QuantMethod::kNone}) {
    const MoeModel model = testing::random_model(gpt_oss_config(96, 64, method));
    constexpr int64_t kTokens = 300;
    const std::vector<float> x = random_rows(kTokens, 96, 5);
    const MoeCaseOptions options{
        .kernels = GetParam(), .compute = Compute::kBf16, .max_tokens = kTokens};
    MoeCase moe(model, 0, options);
    const std::vector<float> whole = moe.run(x);
    for (const int64_t token : {0, 150, 299}) {
      const auto at = static_cast<size_t>(token * 96);
      const auto alone = moe.run(std::span<const float>(x).subspan(at, 96));
      EXPECT_TRUE(same_bits(alone, std::span<const float>(whole).subspan(at, 96))) << token;
    }
  }
}

TEST_P(RunnerWide, GptOssWidthsPaddedAndNotAreTheSameBits) {
  const MoeModel model = testing::random_model(gpt_oss_config(2880, 2880, QuantMethod::kMxfp4));
  const std::vector<float> x = random_rows(3, 2880, 6);
  MoeCaseOptions options{.kernels = GetParam(), .compute = Compute::kBf16, .max_tokens = 3};
  const std::vector<float> unpadded = MoeCase(model, 0, options).run(x);
  options.moe.hidden_alignment = 256;
  options.moe.intermediate_alignment = 128;
  MoeCase padded(model, 0, options);
  EXPECT_EQ(padded.plan().widths.experts_in, Extent(2880, 3072));
  EXPECT_TRUE(same_bits(padded.run(x), unpadded));
}

// Nemotron-H: relu2 experts in a latent width, beside a shared expert of the full one.
ModelConfig latent_config(int64_t latent) {
  ModelConfig config = testing::golden_model("nemotron-bf16-h336").config;
  config.latent = latent;
  return config;
}

// Written out: the router sees all of x, the experts its projection, the shared expert all of it.
std::vector<float> latent_mixture(const MoeModel& model, const MoeCase& moe,
                                  std::span<const float> x) {
  const std::string mixer = "backbone.layers.1.mixer.";
  const auto multiply = [&](const std::string& name, const std::vector<double>& in) {
    const TensorInfo& weight = *model.checkpoint.find(mixer + name + ".weight");
    std::vector<double> out(static_cast<size_t>(weight.shape[0]));
    for (size_t n = 0; n < out.size(); ++n) {
      for (size_t k = 0; k < in.size(); ++k) {
        out[n] += double{to_float(weight.as<Bf16>()[n * in.size() + k])} * in[k];
      }
    }
    return out;
  };
  const auto expert = [&](const std::string& name, const std::vector<double>& in) {
    std::vector<double> inside = multiply(name + ".up_proj", in);
    for (double& value : inside) value = value > 0 ? value * value : 0;
    return multiply(name + ".down_proj", inside);
  };
  const auto hidden = static_cast<size_t>(model.config.hidden);
  const auto k = static_cast<size_t>(model.config.top_k);
  std::vector<float> result;
  for (size_t token = 0; token < x.size() / hidden; ++token) {
    const auto row = x.subspan(token * hidden, hidden);
    const std::vector<double> full(row.begin(), row.end());
    const std::vector<double> latent = multiply("fc1_latent_proj", full);
    std::vector<double> sum(latent.size());
    for (size_t slot = token * k; slot < (token + 1) * k; ++slot) {
      const auto out = expert(fmt::format("experts.{}", moe.ids[slot]), latent);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += double{moe.weights[slot]} * out[i];
    }
    const std::vector<double> routed = multiply("fc2_latent_proj", sum);
    const std::vector<double> shared = expert("shared_experts", full);
    for (size_t i = 0; i < hidden; ++i) result.push_back(static_cast<float>(routed[i] + shared[i]));
  }
  return result;
}

TEST_P(RunnerWide, LatentExpertsAndTheSharedOneAreWhatTheFormulaSays) {
  const MoeModel model = testing::random_model(latent_config(48));
  const std::vector<float> x = random_rows(5, model.config.hidden, 8);
  MoeCase moe(model, 0, {.kernels = GetParam(), .compute = Compute::kFloat32});
  const std::vector<float> found = moe.run(x);
  EXPECT_LT(testing::relative_rms(found, latent_mixture(model, moe, x)), 1e-5);
}

// Only the latent width is padded; what goes in and comes out is not.
TEST_P(RunnerWide, APaddedLatentWidthLeavesNoTrace) {
  const MoeModel model = testing::random_model(latent_config(50));
  const std::vector<float> x = random_rows(20, model.config.hidden, 9);
  for (const Compute compute : {Compute::kFloat32, Compute::kBf16}) {
    MoeCaseOptions options{.kernels = GetParam(), .compute = compute};
    const std::vector<float> unpadded = MoeCase(model, 0, options).run(x);
    options.moe.hidden_alignment = 64;
    options.moe.intermediate_alignment = 128;
    MoeCase padded(model, 0, options);
    EXPECT_EQ(padded.plan().widths.experts_in, Extent(50, 64));
    EXPECT_TRUE(same_bits(padded.run(x), unpadded));
    options.max_workspace = Bytes{1};
    EXPECT_TRUE(same_bits(MoeCase(model, 0, options).run(x), unpadded)) << "one token a pass";
  }
}

// Inputs of routed experts alone are rounded to 8 bits, whatever --dtype is; widths that nothing
// divides are padded without a trace.
TEST_P(RunnerWide, EightBitExpertsAreCloseTheSameForAnyBatchAndPadding) {
  if (GetParam()->isa == Isa::kRef) return;  // which they refuse
  for (const auto& [name, backend] : {std::pair{"gptoss-mxfp4-h160", "cpu_mxfp4_int8"},
                                      std::pair{"nemotron-nvfp4-h112", "cpu_nvfp4_int8"}}) {
    const MoeModel model = testing::golden_model(name);
    const int64_t hidden = model.config.hidden;
    const std::vector<float> x = random_rows(20, hidden, 11);
    MoeCaseOptions options{.kernels = GetParam(), .compute = Compute::kFloat32};
    const std::vector<float> exact = MoeCase(model, 0, options).run(x);
    options.moe.backend = backend;
    MoeCase int8(model, 0, options);
    const std::vector<float> found = int8.run(x);
    const double error = testing::relative_rms(found, exact);
    EXPECT_LT(error, 2e-2) << name;
    EXPECT_GT(error, 1e-4) << name << ": inputs were not rounded";
    for (int64_t row = 0; row < 20; ++row) {
      const auto first = row * hidden;
      EXPECT_TRUE(same_bits(int8.run({x.begin() + first, x.begin() + first + hidden}),
                            {found.begin() + first, found.begin() + first + hidden}))
          << name << ", row " << row;
    }
    options.moe.hidden_alignment = 256;
    options.moe.intermediate_alignment = 128;
    EXPECT_TRUE(same_bits(MoeCase(model, 0, options).run(x), found)) << name;
  }
}

// The mixture of two expert-parallel ranks, each with half of the experts, is the whole one.
TEST(RunnerRanks, ExpertsElsewhereAddNothingHere) {
  const MoeModel model = testing::golden_model("gptoss-mxfp4-h160");
  const KernelTable& kernels = *available_kernels(detect_cpu()).back();
  const int64_t hidden = model.config.hidden;
  const std::vector<float> x = random_rows(12, hidden, 7);
  const std::vector<float> whole =
      MoeCase(model, 0, {.kernels = &kernels, .compute = Compute::kFloat32}).run(x);

  const MoePlan plan =
      *plan_moe(moe_config(model.config), {},
                {.cpu = detect_cpu(), .isa = kernels.isa, .compute = Compute::kFloat32});
  ThreadTeam team({.threads = 2, .pin = false});
  MoeRunner runner = *MoeRunner::make(plan, kernels, team, 12);
  std::vector<float> sum(x.size(), 0.0f), part(x.size());
  for (int rank = 0; rank < 2; ++rank) {
    const MoeLayer layer = *MoeLayer::load(
        model.checkpoint, moe_tensor_names(model.config.architecture, 0),
        {.config = &plan.config,
         .plan = &plan.widths,
         .map = *ExpertMap::make(model.config.experts, 2, rank, ExpertPlacement::kRoundRobin),
         .compute = Compute::kFloat32});
    ASSERT_TRUE(runner
                    .run(layer, MatrixView<const float>(x.data(), 12, Extent(hidden), hidden),
                         MatrixView<float>(part.data(), 12, Extent(hidden), hidden))
                    .ok());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  EXPECT_LT(testing::relative_rms(sum, whole), 1e-6);
}

}  // namespace
}  // namespace rota
