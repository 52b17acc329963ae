#include "moe/weights.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <set>

#include "checkpoint/testing/write_safetensors.h"
#include "moe/padded_copy.h"
#include "moe/plan.h"
#include "moe/scale_scan.h"
#include "moe/testing/moe_case.h"
#include "moe/testing/synthetic_layer.h"
#include "quant/fp8.h"
#include "quant/mxfp4.h"
#include "quant/nvfp4.h"

namespace rota {
namespace {

using ::testing::HasSubstr;

// The value of one element of a weight matrix, by the format's own rules.
float element(const WeightMatrix& w, int64_t n, int64_t k) {
  const int64_t row = w.order == WeightOrder::kOutIn ? n : k;
  const int64_t column = w.order == WeightOrder::kOutIn ? k : n;
  const std::byte* data = w.data + row * w.row_stride.count;
  if (w.format == WeightFormat::kBf16) {
    Bf16 value;
    std::memcpy(&value, data + column * 2, 2);
    return to_float(value);
  }
  if (w.format == WeightFormat::kFp8) {
    const float value = e4m3_to_float(static_cast<uint8_t>(data[column]));
    // Behind the last logical column there is no factor, and nothing to multiply.
    return value == 0 ? 0 : value * w.factors.row(n)[column / w.factors.columns];
  }
  if (w.format == WeightFormat::kNvfp4) {
    const auto* codes = reinterpret_cast<const uint8_t*>(data) + column / 16 * 8;
    std::array<float, 16> block;
    decode_nvfp4_block(std::span<const uint8_t, 8>(codes, 8),
                       w.scales[n * w.scale_stride.count + column / 16], block);
    return block[static_cast<size_t>(column % 16)] * *w.factors.row(n);
  }
  const auto* codes = reinterpret_cast<const uint8_t*>(data) + column / 32 * 16;
  std::array<float, 32> block;
  decode_mxfp4_block(std::span<const uint8_t, 16>(codes, 16),
                     w.scales[n * w.scale_stride.count + column / 32], block);
  return block[static_cast<size_t>(column % 32)];
}

// Copies agree with the file inside the logical region and are zero, with zero bias, outside.
void expect_padded_copy(const WeightMatrix& file, const WeightMatrix& copy) {
  ASSERT_EQ(copy.out.logical(), file.out.logical());
  ASSERT_EQ(copy.in.logical(), file.in.logical());
  ASSERT_EQ(copy.bias == nullptr, file.bias == nullptr);
  for (int64_t n = 0; n < copy.out.padded(); ++n) {
    const bool row = n < file.out.logical();
    for (int64_t k = 0; k < copy.in.padded(); ++k) {
      const float expected = row && k < file.in.logical() ? element(file, n, k) : 0.0f;
      ASSERT_EQ(element(copy, n, k), expected) << n << ", " << k;
    }
    if (copy.bias != nullptr) {
      ASSERT_EQ(to_float(copy.bias[n]), row ? to_float(file.bias[n]) : 0.0f) << n;
    }
  }
}

struct Loaded {
  MoePlan plan;
  MoeLayer layer;
};

Loaded load(const testing::MoeModel& model, int64_t hidden_alignment,
            int64_t intermediate_alignment, std::optional<ExpertMap> map = std::nullopt,
            ParallelShape parallel = {}) {
  const BackendContext context{.cpu = {}, .isa = Isa::kRef, .compute = Compute::kBf16};
  auto plan = plan_moe(moe_config(model.config),
                       {.backend = "ref",
                        .hidden_alignment = hidden_alignment,
                        .intermediate_alignment = intermediate_alignment},
                       context);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  plan->widths = *plan_widths({.moe = plan->config,
                               .experts = plan->choice.backend,
                               .parallel = parallel,
                               .hidden_alignment = hidden_alignment,
                               .intermediate_alignment = intermediate_alignment});
  auto layer = MoeLayer::load(
      model.checkpoint,
      moe_tensor_names(model.config.architecture, testing::mixture_layer(model.config, 0)),
      {.config = &plan->config,
       .plan = &plan->widths,
       .map = map ? *map : ExpertMap::whole(model.config.experts),
       .compute = Compute::kBf16,
       .quant = &model.config.quant});
  ROTA_CHECK(layer.ok(), layer.status().message());
  return {std::move(plan).value(), std::move(layer).value()};
}

// Gate, or up where there is no gate.
const WeightMatrix& first_matrix(const Loaded& loaded, int64_t expert) {
  const ExpertMatrices& matrices = loaded.layer.expert(expert);
  return loaded.plan.config.gated() ? matrices.gate : matrices.up;
}

class Weights : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, Weights,
                         ::testing::Values("gptoss-mxfp4-h160", "gptoss-mxfp4-h288",
                                           "gptoss-bf16-h160", "mixtral-bf16-h72",
                                           "qwen3-bf16-h160", "nemotron-bf16-h336",
                                           "mixtral-fp8-h80", "qwen3-fp8-h288", "nemotron-fp8-h144",
                                           "nemotron-nvfp4-h112", "nemotron-latent-mixed-h112"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(Weights, UnpaddedWeightsAreTheFile) {
  const testing::MoeModel model = testing::golden_model(GetParam());
  const Loaded loaded = load(model, 0, 0);
  EXPECT_EQ(loaded.layer.bytes().copied.count, 0);
  EXPECT_EQ(loaded.layer.bytes().mapped, loaded.plan.layer_bytes.mapped);
  const auto in_file = [&](const void* at) {
    for (const TensorInfo& tensor : model.checkpoint.tensors()) {
      if (tensor.bytes.data() <= at && at < tensor.bytes.data() + tensor.bytes.size()) return true;
    }
    return false;
  };
  for (int64_t e = 0; e < model.config.experts; ++e) {
    EXPECT_TRUE(in_file(first_matrix(loaded, e).data));
    EXPECT_TRUE(in_file(loaded.layer.expert(e).down.data));
  }
  EXPECT_TRUE(in_file(loaded.layer.router().data));
}

TEST_P(Weights, PaddedCopiesHoldTheLogicalRegionAndZeros) {
  const testing::MoeModel model = testing::golden_model(GetParam());
  const Loaded file = load(model, 0, 0);
  for (const auto& [hidden, intermediate] :
       std::vector<std::pair<int64_t, int64_t>>{{256, 0}, {0, 128}, {512, 256}}) {
    const Loaded padded = load(model, hidden, intermediate);
    EXPECT_EQ(padded.layer.bytes().copied, padded.plan.layer_bytes.copied);
    EXPECT_EQ(padded.layer.bytes().mapped, padded.plan.layer_bytes.mapped);
    EXPECT_GT(padded.layer.bytes().copied.count, 0);
    for (const int64_t e : {int64_t{0}, model.config.experts - 1}) {
      const ExpertMatrices& a = file.layer.expert(e);
      const ExpertMatrices& b = padded.layer.expert(e);
      if (padded.plan.config.gated()) expect_padded_copy(a.gate, b.gate);
      expect_padded_copy(a.down, b.down);
      if (!padded.plan.config.interleaved) expect_padded_copy(a.up, b.up);
      // Gate and up halves keep their own places: as many padded rows as 2 * padded intermediate.
      const Extent half = *padded.plan.widths.intermediate;
      EXPECT_EQ(first_matrix(padded, e).out.padded(),
                padded.plan.config.interleaved ? 2 * half.padded() : half.padded());
    }
  }
}

TEST_P(Weights, ARankHoldsItsExpertsOnly) {
  const testing::MoeModel model = testing::golden_model(GetParam());
  const Loaded whole = load(model, 0, 0);
  for (int rank = 0; rank < 4; ++rank) {
    const ExpertMap map =
        *ExpertMap::make(model.config.experts, 4, rank, ExpertPlacement::kRoundRobin);
    const Loaded part = load(model, 0, 0, map);
    for (int64_t local = 0; local < map.local_count(); ++local) {
      EXPECT_EQ(part.layer.expert(local).down.data,
                whole.layer.expert(map.global(local)).down.data);
    }
    EXPECT_EQ(part.layer.bytes().mapped.count,
              part.layer.bytes_of_one_expert().count * map.local_count());
  }
}

// What a shard of an expert holds, in logical elements: rows of gate and up, columns of down, and
// down's bias in the first shard alone.
void expect_shard(const ExpertMatrices& whole, const ExpertMatrices& shard, const Loaded& loaded) {
  const int64_t begin = loaded.plan.widths.intermediate_begin;
  const int64_t count = loaded.plan.widths.intermediate->logical();
  const int64_t rows = loaded.plan.config.interleaved ? 2 : 1;
  if (loaded.plan.config.gated()) {
    expect_padded_copy(column_slice(whole.gate, rows * begin, rows * count), shard.gate);
  }
  if (rows == 1) expect_padded_copy(column_slice(whole.up, begin, count), shard.up);
  WeightMatrix down = input_slice(whole.down, begin, count);
  if (begin > 0) down.bias = nullptr;
  expect_padded_copy(down, shard.down);
  for (int64_t k = 0; k < count; ++k) {
    ASSERT_EQ(element(shard.down, 3, k), element(whole.down, 3, begin + k)) << k;
  }
}

TEST_P(Weights, ATensorParallelShardIsItsRowsAndColumns) {
  const testing::MoeModel model = testing::golden_model(GetParam());
  const Loaded whole = load(model, 0, 0);
  for (const int shards : {2, 3, 16}) {
    int64_t elements = 0;
    for (int rank = 0; rank < shards; ++rank) {
      for (const int64_t alignment : {0, 256}) {
        const ParallelShape parallel{.tp = shards, .rank = rank};
        const Loaded part = load(model, alignment, alignment, std::nullopt, parallel);
        if (!part.plan.widths.intermediate) continue;
        expect_shard(whole.layer.expert(1), part.layer.expert(1), part);
        if (alignment == 0) {
          EXPECT_EQ(part.layer.bytes().copied.count, 0) << "a shard is a view";
          elements += part.plan.widths.intermediate->logical();
        }
      }
    }
    EXPECT_EQ(elements, model.config.intermediate) << shards;
  }
}

TEST(EmptyShard, HasNoExpertAndCostsNothing) {
  const testing::MoeModel model = testing::golden_model("gptoss-mxfp4-h160");
  const Loaded last = load(model, 0, 0, std::nullopt, {.tp = 16, .rank = 15});
  ASSERT_FALSE(last.plan.widths.intermediate.has_value());
  EXPECT_EQ(last.layer.map().local_count(), 0);
  EXPECT_EQ(last.layer.bytes().mapped.count + last.layer.bytes().copied.count, 0);
  EXPECT_NE(describe(last.plan).find("empty shard"), std::string::npos);
}

TEST(ColumnSlice, IsTheSameElements) {
  for (const char* name :
       {"gptoss-mxfp4-h160", "gptoss-bf16-h160", "mixtral-bf16-h72", "qwen3-bf16-h160"}) {
    const testing::MoeModel model = testing::golden_model(name);
    const Loaded loaded = load(model, 0, 0);
    const WeightMatrix& whole = loaded.layer.expert(1).gate;
    const WeightMatrix slice = column_slice(whole, 10, 20);
    EXPECT_EQ(slice.out, Extent(20));
    for (int64_t n = 0; n < 20; ++n) {
      for (int64_t k = 0; k < whole.in.logical(); ++k) {
        ASSERT_EQ(element(slice, n, k), element(whole, 10 + n, k));
      }
      if (whole.bias != nullptr) {
        EXPECT_EQ(slice.bias[n].bits, whole.bias[10 + n].bits);
      }
    }
  }
}

// What a test makes wrong in a copy of a checkpoint.
struct Spoil {
  std::string tensor;
  int64_t at = 0;
  std::vector<uint8_t> bytes;
};

Checkpoint spoiled_copy(const Checkpoint& good, const testing::TempFolder& folder,
                        const Spoil& spoil) {
  std::vector<std::vector<std::byte>> data;
  std::vector<TensorToWrite> tensors;
  for (const TensorInfo& tensor : good.tensors()) {
    auto& bytes = data.emplace_back(tensor.bytes.begin(), tensor.bytes.end());
    if (tensor.name == spoil.tensor) {
      std::memcpy(bytes.data() + spoil.at, spoil.bytes.data(), spoil.bytes.size());
    }
    tensors.push_back({{tensor.name, tensor.dtype, tensor.shape}, bytes});
  }
  const Status written = write_safetensors(folder / "model.safetensors", tensors);
  ROTA_CHECK(written.ok(), written.message());
  auto checkpoint = Checkpoint::open(folder.path());
  ROTA_CHECK(checkpoint.ok(), checkpoint.status().message());
  return std::move(checkpoint).value();
}

// A small gpt-oss layer in MXFP4 whose scales a test may spoil.
class Scales : public ::testing::Test {
 protected:
  Scales() : model_(testing::golden_model("gptoss-mxfp4-h160")) {}

  // The result of looking at `expert`, one of whose scales is `value` in a copy of the file.
  Status verify_with(uint8_t value, Compute compute, int64_t expert) {
    const char* const name = "model.layers.0.mlp.experts.down_proj_scales";
    const TensorInfo& scales = *model_.checkpoint.find(name);
    const int64_t at = expert * (scales.byte_size / scales.shape[0]) + 2 * scales.shape[2] + 1;
    testing::MoeModel spoiled{model_.config,
                              spoiled_copy(model_.checkpoint, folder_, {name, at, {value}})};
    const KernelTable& ref = kernels_for(Isa::kRef, {});
    testing::MoeCase moe(spoiled, 0, {.kernels = &ref, .compute = compute});
    ThreadTeam team({.threads = 2, .pin = false});
    const std::vector<int32_t> others = {expert == 0 ? 1 : 0};
    EXPECT_TRUE(moe.layer().verify(others, team).ok());
    const std::vector<int32_t> both = {others[0], static_cast<int32_t>(expert)};
    const Status status = moe.layer().verify(both, team);
    EXPECT_EQ(moe.layer().verify_all(team).ok(), status.ok());
    ScaleScan scan({&moe.layer()});
    EXPECT_EQ(scan.wait().message(), status.message());
    // Seen once, seen for ever: a second look gives the same answer.
    EXPECT_EQ(moe.layer().verify(both, team).ok(), status.ok());
    return status;
  }

  testing::TempFolder folder_;
  testing::MoeModel model_;
};

TEST_F(Scales, NanScaleNamesFileTensorAndPlace) {
  const Status status = verify_with(255, Compute::kFloat32, 3);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("model.safetensors"));
  EXPECT_THAT(status.message(), HasSubstr("down_proj_scales"));
  EXPECT_THAT(status.message(), HasSubstr("expert 3, row 2, block 1"));
}

TEST_F(Scales, AScaleThatOverflowsBf16IsRefusedInBf16ModeOnly) {
  EXPECT_FALSE(verify_with(253, Compute::kBf16, 0).ok());
  EXPECT_TRUE(verify_with(253, Compute::kFloat32, 0).ok());
  EXPECT_TRUE(verify_with(252, Compute::kBf16, 0).ok());
}

// A layer whose experts have tensors of their own, spoiled, as one of some shards sees it.
class Damage {
 public:
  static constexpr int64_t kHidden = 288;
  static constexpr int64_t kIntermediate = 352;

  Damage(std::string_view kind, const Spoil& spoil)
      : layer_(*std::find_if(testing::kLayerKinds.begin(), testing::kLayerKinds.end(),
                             [&](const auto& one) { return one.name == kind; }),
               {kHidden, kIntermediate}),
        checkpoint_(spoiled_copy(layer_.checkpoint(), folder_, spoil)) {}

  Result<MoeLayer> load(int tp, int rank) {
    const BackendContext context{.cpu = {}, .isa = Isa::kRef, .compute = Compute::kBf16};
    plan_ = std::make_unique<MoePlan>(*plan_moe(layer_.config(), {.backend = "ref"}, context));
    plan_->widths = *plan_widths({.moe = layer_.config(),
                                  .experts = plan_->choice.backend,
                                  .parallel = {.tp = tp, .rank = rank}});
    return MoeLayer::load(checkpoint_, layer_.names(),
                          {.config = &plan_->config,
                           .plan = &plan_->widths,
                           .map = ExpertMap::whole(testing::SyntheticLayer::kExperts)});
  }

 private:
  testing::SyntheticLayer layer_;
  testing::TempFolder folder_;
  Checkpoint checkpoint_;
  std::unique_ptr<MoePlan> plan_;
};

TEST(DamageOfOneExpert, IsFoundByTheRankThatHoldsItAndByNoOther) {
  struct Case {
    const char* kind;
    const char* tensor;
    int64_t rows, columns;  // the last byte of them is spoiled
    uint8_t value;
  };
  constexpr int64_t kHidden = Damage::kHidden;
  constexpr int64_t kIntermediate = Damage::kIntermediate;
  for (const Case& c : {
           Case{"each_expert_mxfp4", "down_scales", kHidden, kIntermediate / 32, 0xff},
           Case{"each_expert_mxfp4", "up_scales", kIntermediate, kHidden / 32, 0xfe},
           Case{"nvfp4", "down.weight_scale", kHidden, kIntermediate / 16, 0x7f},
           Case{"nvfp4", "gate.weight_scale", kIntermediate, kHidden / 16, 0xff},
           Case{"mixtral_fp8_tensor", "down.weight", kHidden, kIntermediate, 0x7f},
           Case{"qwen3_fp8_blocks", "up.weight", kIntermediate, kHidden, 0xff},
       }) {
    const std::string tensor = fmt::format("experts.3.{}", c.tensor);
    SCOPED_TRACE(fmt::format("{} {}", c.kind, tensor));
    Damage damage(c.kind, {tensor, c.rows * c.columns - 1, {c.value}});
    for (const auto& [tp, rank] : {std::pair(1, 0), std::pair(2, 0), std::pair(2, 1)}) {
      const auto layer = damage.load(tp, rank);
      ASSERT_TRUE(layer.ok()) << layer.status().message();
      EXPECT_TRUE(layer->has_checks());
      EXPECT_TRUE(layer->verify_one(2).ok());
      const Status status = layer->verify_one(3);
      ASSERT_EQ(status.ok(), rank < tp - 1);
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), StatusCode::kDataLoss);
      EXPECT_THAT(status.message(),
                  HasSubstr(fmt::format("model.safetensors: tensor {}: row {}, column {} has the "
                                        "byte {:#04x}",
                                        tensor, c.rows - 1, c.columns - 1, c.value)));
    }
  }
}

// A NaN logit is lower than all others: without this the expert would silently never be chosen.
TEST(DamageOfARouter, IsRefusedAtLoadWithTheExpertsName) {
  struct Case {
    const char* kind;
    const char* tensor;
    int64_t expert, column, width;
  };
  constexpr int64_t kHidden = Damage::kHidden;
  for (const Case& c : {
           Case{"gpt_oss_mxfp4", "router.weight", 0, 0, kHidden},
           Case{"mixtral_bf16", "router.weight", 5, kHidden - 1, kHidden},
           Case{"relu2_bf16", "router.weight", 3, 7, kHidden},
           Case{"gpt_oss_mxfp4", "router.bias", 4, 0, 1},
           Case{"relu2_nvfp4", "router.correction_bias", 2, 0, 1},
       }) {
    for (const uint16_t bits : std::to_array<uint16_t>({0x7fc0, 0xff81, 0x7f80, 0xff80})) {
      SCOPED_TRACE(fmt::format("{} {} {:#x}", c.kind, c.tensor, bits));
      const Spoil spoil{c.tensor,
                        2 * (c.expert * c.width + c.column),
                        {static_cast<uint8_t>(bits), static_cast<uint8_t>(bits >> 8)}};
      const Status status = Damage(c.kind, spoil).load(1, 0).status();
      EXPECT_EQ(status.code(), StatusCode::kDataLoss);
      EXPECT_THAT(status.message(),
                  HasSubstr(fmt::format("model.safetensors: tensor {}: expert {}, column {} is ",
                                        c.tensor, c.expert, c.column)));
    }
  }
}

TEST(DamageOfOneExpert, FactorsThatAreNoFactorsAreRefusedAtLoad) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float value : {std::nanf(""), kInfinity, -kInfinity, -1.0f, -0.0f}) {
    for (const auto& [kind, name] :
         {std::pair("nvfp4", "weight_scale_2"), std::pair("mixtral_fp8_tensor", "weight_scale"),
          std::pair("qwen3_fp8_blocks", "weight_scale_inv")}) {
      std::vector<uint8_t> bytes(sizeof value);
      std::memcpy(bytes.data(), &value, sizeof value);
      const std::string tensor = fmt::format("experts.3.up.{}", name);
      const auto layer = Damage(kind, {tensor, 0, bytes}).load(1, 0);
      ASSERT_FALSE(layer.ok()) << tensor << " " << value;
      EXPECT_EQ(layer.status().code(), StatusCode::kDataLoss);
      EXPECT_THAT(layer.status().message(),
                  HasSubstr(fmt::format("model.safetensors: tensor {}: factor 0 is {}, expected",
                                        tensor, value)));
    }
  }
}

}  // namespace
}  // namespace rota
