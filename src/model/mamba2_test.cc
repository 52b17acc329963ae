// The Mamba2 block alone, against what transformers computed in float32; its states in their slots.
#include "model/mamba2.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "model/bind.h"
#include "tensor/testing/golden_file.h"

namespace rota {
namespace {

constexpr const char* kPack = "models/nemotron-bf16-h336";
constexpr int64_t kTokens = 7;

std::vector<uint32_t> bits(std::span<const float> values) {
  std::vector<uint32_t> result;
  for (const float value : values) result.push_back(std::bit_cast<uint32_t>(value));
  return result;
}

double relative_rms(std::span<const float> found, std::span<const float> expected) {
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(double{found[i]} - double{expected[i]}, 2);
    size += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(error / size);
}

template <typename T>
T taken(Result<T> result) {
  ROTA_CHECK(result.ok(), result.status().message());
  return std::move(result).value();
}

// Layer 0 of the pack with a cache of three slots.
class Block {
 public:
  Block(const KernelTable& kernels, int threads)
      : config_(taken(read_model_config(testing::golden_path(kPack)))),
        checkpoint_(taken(Checkpoint::open(testing::golden_path(kPack)))),
        team_({.threads = threads, .pin = false}),
        exec_(taken(Execution::make(kernels, Compute::kFloat32, team_,
                                    {.max_in = Extent(config_.hidden), .attention = {}}))),
        block_(taken(Mamba2Block::make(
            taken(bind_mamba2({config_, checkpoint_, factors_}, "backbone.layers.0.mixer")),
            {.mamba = config_.mamba,
             .norm_eps = static_cast<float>(config_.rms_eps),
             .state_index = 0},
            exec_))),
        workspace_(
            taken(Mamba2Workspace::allocate(config_, 2 * kTokens, block_.prepared_per_token()))),
        cache_(taken(
            KvCache::allocate(make_kv_spec(config_, Compute::kFloat32, kernels), 1, kSlots))) {
    // What other sequences left behind.
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      const auto state = cache_.state(slot, 0);
      std::fill_n(reinterpret_cast<float*>(state.data()), state.size() / sizeof(float), NAN);
    }
  }

  // What the block adds to a residual stream of zeros, and says that it added.
  struct Output {
    std::vector<float> added;
    std::vector<float> returned;
  };
  Output run(std::span<const float> in, std::span<const SequenceChunk> chunks) {
    const int64_t hidden = config_.hidden;
    const auto tokens = static_cast<int64_t>(in.size()) / hidden;
    Output out{.added = std::vector<float>(in.size(), 0.0f), .returned = {}};
    const MatrixView<const float> result = taken(
        block_.run({.exec = &exec_, .chunks = chunks, .cache = &cache_, .workspace = &workspace_},
                   MatrixView<const float>(in.data(), tokens, Extent(hidden), hidden),
                   MatrixView<float>(out.added.data(), tokens, Extent(hidden), hidden)));
    for (int64_t row = 0; row < tokens; ++row) {
      out.returned.insert(out.returned.end(), result.row(row).begin(), result.row(row).end());
    }
    return out;
  }

 private:
  static constexpr int32_t kSlots = 3;
  ModelConfig config_;
  FactorStore factors_;
  Checkpoint checkpoint_;
  ThreadTeam team_;
  Execution exec_;
  Mamba2Block block_;
  Mamba2Workspace workspace_;
  KvCache cache_;
};

SequenceChunk chunk_of(int64_t first_row, int64_t tokens, int64_t first_position, int32_t slot) {
  return {.first_row = first_row,
          .tokens = tokens,
          .first_position = first_position,
          .block_tables = {},
          .state_slot = slot};
}

class Mamba2BlockTest : public ::testing::TestWithParam<const KernelTable*> {
 protected:
  const testing::GoldenFile golden_{testing::golden_path(kPack) + "/golden.safetensors"};
  const std::vector<float> in_{golden_.floats("p7.mamba.0.in").begin(),
                               golden_.floats("p7.mamba.0.in").end()};
};
INSTANTIATE_TEST_SUITE_P(Isa, Mamba2BlockTest, ::testing::ValuesIn(available_kernels(detect_cpu())),
                         [](const auto& info) { return std::string(info.param->name); });

TEST_P(Mamba2BlockTest, SevenTokensOfALayerOverAnyNumberOfThreads) {
  std::vector<uint32_t> first;
  for (const int threads : {1, 3}) {
    Block block(*GetParam(), threads);
    const SequenceChunk chunk = chunk_of(0, kTokens, 0, 1);
    const Block::Output out = block.run(in_, std::span(&chunk, 1));
    EXPECT_LT(relative_rms(out.added, golden_.floats("p7.mamba.0.out")), 1e-5);
    EXPECT_EQ(bits(out.returned), bits(out.added));
    if (first.empty()) first = bits(out.added);
    EXPECT_EQ(bits(out.added), first) << threads << " threads";
  }
}

// A sequence whose tokens come one, two and four at a time, beside another that starts later in a
// slot of its own: each gets the bits of the whole.
TEST_P(Mamba2BlockTest, SequencesSideBySideKeepTheirStates) {
  Block block(*GetParam(), 2);
  const size_t hidden = in_.size() / kTokens;
  const SequenceChunk whole = chunk_of(0, kTokens, 0, 0);
  const std::vector<float> want = block.run(in_, std::span(&whole, 1)).added;
  std::vector<float> found;
  int64_t position = 0;
  for (const int64_t tokens : {1, 2, 4}) {
    const auto part = std::span(in_).subspan(static_cast<size_t>(position) * hidden,
                                             static_cast<size_t>(tokens) * hidden);
    std::vector<float> rows(in_.begin(), in_.end());  // the other one: whole, each time from 0
    rows.insert(rows.end(), part.begin(), part.end());
    const std::vector<SequenceChunk> chunks{chunk_of(0, kTokens, 0, 2),
                                            chunk_of(kTokens, tokens, position, 1)};
    const std::vector<float> out = block.run(rows, chunks).added;
    EXPECT_EQ(bits(std::span(out).first(in_.size())), bits(want));
    found.insert(found.end(), out.begin() + static_cast<std::ptrdiff_t>(in_.size()), out.end());
    position += tokens;
  }
  EXPECT_EQ(bits(found), bits(want));
}

}  // namespace
}  // namespace rota
