// The attention block alone, against what transformers computed in float32.
#include "model/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "kernels/rope_table.h"
#include "model/bind.h"
#include "tensor/testing/golden_file.h"

namespace rota {
namespace {

struct AttentionCase {
  std::string pack;
  const KernelTable* kernels = nullptr;
  int layer = 0;
};

class AttentionGolden : public ::testing::TestWithParam<AttentionCase> {};

RopeTable rope_of(const ModelConfig& config) {
  RopeParameters parameters;
  parameters.head_dim = config.head_dim;
  parameters.theta = config.rope.theta;
  if (config.rope.type == RopeType::kYarn) {
    parameters.yarn = YarnParameters{.factor = config.rope.factor,
                                     .original_max_position = config.rope.original_max_position,
                                     .beta_fast = config.rope.beta_fast,
                                     .beta_slow = config.rope.beta_slow,
                                     .truncate = config.rope.truncate};
  }
  auto table = RopeTable::make(parameters);
  ROTA_CHECK(table.ok(), table.status().message());
  return std::move(table).value();
}

double relative_rms(std::span<const float> expected, MatrixView<const float> found) {
  double error = 0, size = 0;
  for (int64_t row = 0; row < found.rows(); ++row) {
    for (int64_t column = 0; column < found.width().logical(); ++column) {
      const double e = expected[static_cast<size_t>(row * found.width().logical() + column)];
      const double d = double{found.row(row)[static_cast<size_t>(column)]} - e;
      error += d * d;
      size += e * e;
    }
  }
  return std::sqrt(error / size);
}

// One sequence from position 0 on, whole, with pages in any order.
TEST_P(AttentionGolden, SevenTokensOfALayer) {
  const AttentionCase& c = GetParam();
  const std::string dir = testing::golden_path("models/" + c.pack);
  const auto config = read_model_config(dir);
  const auto checkpoint = Checkpoint::open(dir);
  ASSERT_TRUE(config.ok() && checkpoint.ok());
  const testing::GoldenFile golden(dir + "/golden.safetensors");
  const std::string name = fmt::format("p7.attn.{}", c.layer);
  const int64_t tokens = 7;

  ThreadTeam team({.threads = 2, .pin = false});
  const KvSpec spec = make_kv_spec(*config, Compute::kFloat32, *c.kernels);
  const auto exec =
      Execution::make(*c.kernels, Compute::kFloat32, team,
                      {.max_in = Extent(std::max(config->hidden, config->heads * config->head_dim)),
                       .attention = c.kernels->attend_scratch_bytes(spec.shape, config->heads)});
  ASSERT_TRUE(exec.ok());
  FactorStore factors;
  auto weights = bind_attention({*config, *checkpoint, factors},
                                fmt::format("model.layers.{}.self_attn", c.layer));
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  const KvPlace place = kv_places(spec, config->layers)[static_cast<size_t>(c.layer)];
  const auto block =
      AttentionBlock::make(std::move(weights).value(),
                           {.heads = config->heads,
                            .window = spec.groups[static_cast<size_t>(place.group)].window,
                            .kv = spec.shape,
                            .place = place},
                           *exec);
  ASSERT_TRUE(block.ok());

  auto cache = KvCache::allocate(spec, 3);
  auto workspace = AttentionWorkspace::allocate(*config, tokens, block->prepared_per_token());
  auto residual = Matrix<float>::allocate(tokens, Extent(config->hidden));
  ASSERT_TRUE(cache.ok() && workspace.ok() && residual.ok());
  const std::vector<int32_t> table{2};
  const std::vector<std::span<const int32_t>> tables(spec.groups.size(), table);
  const SequenceChunk chunk{
      .first_row = 0, .tokens = tokens, .first_position = 0, .block_tables = tables};
  StepLayout layout(tokens);
  layout.set(std::span(&chunk, 1));
  const RopeTable rope = rope_of(*config);
  std::vector<float> cos(static_cast<size_t>(tokens * rope.half_dim()));
  std::vector<float> sin(cos.size());
  rope.fill(layout.positions(), cos, sin);

  const MatrixView<const float> in(golden.floats(name + ".in").data(), tokens,
                                   Extent(config->hidden), config->hidden);
  const Status status = block->run({.exec = &*exec,
                                    .chunks = std::span(&chunk, 1),
                                    .layout = &layout,
                                    .cache = &*cache,
                                    .cos = cos.data(),
                                    .sin = sin.data(),
                                    .workspace = &*workspace},
                                   in, residual->view());
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_LE(relative_rms(golden.floats(name + ".out"), residual->view()), 1e-5);
}

std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> all;
  for (const char* pack : {"gptoss-mxfp4-h160", "gptoss-mxfp4-h288", "gptoss-bf16-h160",
                           "mixtral-bf16-h72", "qwen3-bf16-h160"}) {
    for (const KernelTable* kernels : available_kernels(detect_cpu())) {
      for (const int layer : {0, 1}) {
        all.push_back({.pack = pack, .kernels = kernels, .layer = layer});
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Packs, AttentionGolden, ::testing::ValuesIn(cases()),
                         [](const auto& info) {
                           std::string name =
                               fmt::format("{}_{}_layer{}", info.param.pack,
                                           info.param.kernels->name, info.param.layer);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace rota
