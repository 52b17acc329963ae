// Loading and its refusals, sizes, tied embeddings, damaged weights.
#include "model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "checkpoint/expected_tensors.h"
#include "checkpoint/testing/write_safetensors.h"
#include "model/kv_cache.h"
#include "tensor/testing/golden_file.h"

namespace rota {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kTokens = 64;

ModelConfig config_of(const std::string& pack, const std::string& overrides = "") {
  auto config =
      read_model_config(testing::golden_path("models/" + pack), {.hf_overrides = overrides});
  ROTA_CHECK(config.ok(), config.status().message());
  return std::move(config).value();
}

ModelOptions options_for(Compute compute) {
  ModelOptions options;
  options.compute = compute;
  options.isa = Isa::kRef;
  options.max_batch_tokens = kTokens;
  options.max_logit_rows = kTokens;
  options.max_model_len = kTokens;
  return options;
}

// A model with its checkpoint and team, run over the first page of a fresh cache.
struct Loaded {
  ModelConfig config;
  Checkpoint checkpoint;
  ThreadTeam team{{.threads = 1, .pin = false}};
  Result<std::unique_ptr<Model>> model;

  Loaded(ModelConfig c, Checkpoint ckpt, const ModelOptions& options)
      : config(std::move(c)),
        checkpoint(std::move(ckpt)),
        model(load_model(config, checkpoint, options, team)) {}

  Status forward(std::span<const int32_t> ids, std::span<float> logits) {
    ROTA_ASSIGN_OR_RETURN(KvCache cache, KvCache::allocate((*model)->kv_spec(), 2, 1));
    const std::vector<int32_t> pages{0, 1};
    std::vector<std::span<const int32_t>> tables;
    for (size_t group = 0; group < (*model)->kv_spec().groups.size(); ++group) {
      tables.push_back(std::span(pages).subspan(group, 1));
    }
    const SequenceChunk chunk{.first_row = 0,
                              .tokens = std::ssize(ids),
                              .first_position = 0,
                              .block_tables = tables,
                              .state_slot = 0};
    std::vector<int32_t> rows(ids.size());
    std::iota(rows.begin(), rows.end(), 0);
    return (*model)->forward(
        {.token_ids = ids, .chunks = std::span(&chunk, 1), .logit_rows = rows}, cache,
        MatrixView<float>(logits.data(), std::ssize(ids), Extent(config.vocab), config.vocab));
  }
};

Checkpoint open(const std::string& dir) {
  auto checkpoint = Checkpoint::open(dir);
  ROTA_CHECK(checkpoint.ok(), checkpoint.status().message());
  return std::move(checkpoint).value();
}

Checkpoint dummy(std::span<const TensorSpec> specs) {
  auto checkpoint = Checkpoint::dummy(specs);
  ROTA_CHECK(checkpoint.ok(), checkpoint.status().message());
  return std::move(checkpoint).value();
}

TEST(LoadModel, NamesTheTensorThatIsMissing) {
  const ModelConfig config = config_of("gptoss-mxfp4-h160");
  for (const std::string gone :
       {"model.norm.weight", "model.layers.1.self_attn.sinks", "model.layers.0.mlp.router.bias",
        "model.layers.3.mlp.experts.down_proj_scales"}) {
    std::vector<TensorSpec> specs = expected_tensors(config);
    std::erase_if(specs, [&](const TensorSpec& spec) { return spec.name == gone; });
    const Loaded loaded(config, dummy(specs), options_for(Compute::kBf16));
    ASSERT_FALSE(loaded.model.ok());
    EXPECT_THAT(loaded.model.status().message(), HasSubstr(gone));
  }
}

TEST(LoadModel, NamesTheMissingTensorOfAHybrid) {
  const ModelConfig config = config_of("nemotron-bf16-h336", R"({"moe_latent_size": 48})");
  for (const std::string gone :
       {"backbone.norm_f.weight", "backbone.layers.0.mixer.A_log",
        "backbone.layers.4.mixer.conv1d.bias", "backbone.layers.2.mixer.k_proj.weight",
        "backbone.layers.1.mixer.gate.e_score_correction_bias",
        "backbone.layers.3.mixer.fc1_latent_proj.weight",
        "backbone.layers.5.mixer.shared_experts.up_proj.weight"}) {
    std::vector<TensorSpec> specs = expected_tensors(config);
    std::erase_if(specs, [&](const TensorSpec& spec) { return spec.name == gone; });
    const Loaded loaded(config, dummy(specs), options_for(Compute::kBf16));
    ASSERT_FALSE(loaded.model.ok());
    EXPECT_THAT(loaded.model.status().message(), HasSubstr(gone));
  }
}

TEST(LoadModel, NamesTheTensorOfAnotherShape) {
  const ModelConfig config = config_of("mixtral-bf16-h72");
  std::vector<TensorSpec> specs = expected_tensors(config);
  for (TensorSpec& spec : specs) {
    if (spec.name == "model.layers.1.self_attn.o_proj.weight") spec.shape = {72, 71};
  }
  const Loaded loaded(config, dummy(specs), options_for(Compute::kBf16));
  ASSERT_FALSE(loaded.model.ok());
  EXPECT_THAT(loaded.model.status().message(),
              AllOf(HasSubstr("model.layers.1.self_attn.o_proj.weight"), HasSubstr("[72, 71]"),
                    HasSubstr("[72, 72]")));
}

TEST(LoadModel, AStepOfNoTokensIsAnError) {
  const ModelConfig config = config_of("mixtral-bf16-h72");
  ModelOptions options = options_for(Compute::kBf16);
  options.max_batch_tokens = 0;
  const Loaded loaded(config, dummy(expected_tensors(config)), options);
  ASSERT_FALSE(loaded.model.ok());
  EXPECT_EQ(loaded.model.status().code(), StatusCode::kInvalidArgument);
}

TEST(LoadModel, AnUnknownBackendIsAnErrorThatNamesIt) {
  const ModelConfig config = config_of("mixtral-bf16-h72");
  ModelOptions options = options_for(Compute::kBf16);
  options.moe.backend = "cuda_marlin";
  const Loaded loaded(config, dummy(expected_tensors(config)), options);
  ASSERT_FALSE(loaded.model.ok());
  EXPECT_THAT(loaded.model.status().message(), HasSubstr("cuda_marlin"));
}

TEST(Model, RunsOnDummyWeights) {
  for (const char* pack : {"gptoss-mxfp4-h288", "gptoss-bf16-h160", "mixtral-bf16-h72",
                           "qwen3-bf16-h160", "nemotron-bf16-h336", "nemotron-latent-bf16-h112"}) {
    const ModelConfig config = config_of(pack);
    Loaded loaded(config, dummy(expected_tensors(config)), options_for(Compute::kBf16));
    ASSERT_TRUE(loaded.model.ok()) << loaded.model.status().message();
    const std::vector<int32_t> ids{3, 1, 4, 1, 5};
    std::vector<float> logits(ids.size() * static_cast<size_t>(config.vocab), 1e30f);
    const Status status = loaded.forward(ids, logits);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(std::all_of(logits.begin(), logits.end(), [](float value) {
      return std::abs(value) < 1e6f;
    })) << pack;
  }
}

// A checkpoint without lm_head computes what one with a copy of the embedding as lm_head does.
TEST(Model, TiedEmbeddingsServeAsLmHead) {
  const std::string pack = "mixtral-bf16-h72";
  const ModelConfig tied = config_of(pack, R"({"tie_word_embeddings": true})");
  const Checkpoint source = open(testing::golden_path("models/" + pack));
  testing::TempFolder folder;
  for (const bool with_head : {false, true}) {
    std::vector<TensorToWrite> tensors;
    for (const TensorInfo& tensor : source.tensors()) {
      const bool head = tensor.name == "lm_head.weight";
      if (head && !with_head) continue;
      const TensorInfo& from = head ? *source.find("model.embed_tokens.weight") : tensor;
      tensors.push_back({{tensor.name, tensor.dtype, tensor.shape}, from.bytes});
    }
    std::filesystem::create_directories(folder / (with_head ? "with" : "without"));
    const Status written = write_safetensors(
        folder / (with_head ? "with/model.safetensors" : "without/model.safetensors"),
        std::move(tensors));
    ASSERT_TRUE(written.ok()) << written.message();
  }
  Loaded without(tied, open(folder / "without"), options_for(Compute::kFloat32));
  Loaded with(config_of(pack), open(folder / "with"), options_for(Compute::kFloat32));
  ASSERT_TRUE(without.model.ok()) << without.model.status().message();
  ASSERT_TRUE(with.model.ok()) << with.model.status().message();
  const std::vector<int32_t> ids{3, 1, 4, 1, 5};
  std::vector<float> a(ids.size() * static_cast<size_t>(tied.vocab));
  std::vector<float> b(a.size());
  ASSERT_TRUE(without.forward(ids, a).ok());
  ASSERT_TRUE(with.forward(ids, b).ok());
  EXPECT_EQ(a, b);
  // The embedding is counted once in the file, and read whole by each token.
  EXPECT_EQ((*with.model)->bytes_per_token(), (*without.model)->bytes_per_token());
  EXPECT_EQ((*with.model)->mapped_bytes() - (*without.model)->mapped_bytes(),
            tied.vocab * tied.hidden * 2);
}

TEST(Model, CountsTheBytesThatATokenReads) {
  // hidden 160, 4 layers, heads 4 x 32, kv 2 x 32, 8 experts of 96, top 4, vocabulary 1024.
  const ModelConfig config = config_of("gptoss-mxfp4-h160");
  const Loaded loaded(config, open(testing::golden_path("models/gptoss-mxfp4-h160")),
                      options_for(Compute::kBf16));
  ASSERT_TRUE(loaded.model.ok()) << loaded.model.status().message();
  const int64_t norms = 2 * 160 * 2;
  const int64_t qkv = (128 + 64 + 64) * (160 + 1) * 2;
  const int64_t o = 160 * (128 + 1) * 2;
  const int64_t sinks = 4 * 2;
  const int64_t router = 8 * (160 + 1) * 2;
  const int64_t gate_up = 192 * (160 / 32 * 17 + 2);
  const int64_t down = 160 * (96 / 32 * 17 + 2);
  const int64_t layer = norms + qkv + o + sinks + router + 4 * (gate_up + down);
  const int64_t frame = 160 * 2 + 160 * 2 + 1024 * 160 * 2;
  EXPECT_EQ((*loaded.model)->bytes_per_token(), 4 * layer + frame);
  EXPECT_EQ((*loaded.model)->mapped_bytes(), loaded.checkpoint.total_bytes());
  EXPECT_EQ((*loaded.model)->copied_bytes(), 0);
  EXPECT_GT((*loaded.model)->workspace_bytes(), kTokens * 160 * 4);
}

TEST(Model, IsPlannedWithTheWorkspaceThatItTakes) {
  for (const std::string pack : {"gptoss-mxfp4-h160", "gptoss-bf16-h160", "mixtral-fp8-h80",
                                 "qwen3-fp8-h288", "nemotron-bf16-h336", "nemotron-fp8-h144",
                                 "nemotron-nvfp4-h112", "nemotron-latent-mixed-h112"}) {
    for (const KernelTable* kernels : available_kernels(detect_cpu())) {
      for (const Compute compute : {Compute::kBf16, Compute::kFloat32}) {
        ModelOptions options = options_for(compute);
        options.isa = kernels->isa;
        options.moe.hidden_alignment = 256;
        Loaded loaded(config_of(pack), open(testing::golden_path("models/" + pack)), options);
        ASSERT_TRUE(loaded.model.ok()) << loaded.model.status().message();
        const auto planned = plan_workspace(loaded.config, options, loaded.team);
        ASSERT_TRUE(planned.ok()) << planned.status().message();
        EXPECT_EQ(*planned, (*loaded.model)->workspace_bytes()) << pack << " " << kernels->name;
      }
    }
  }
}

TEST(Model, CountsTheBytesThatATokenReadsOfAHybrid) {
  // ME*EME, hidden 336; Mamba: 6 heads of 16, 2 groups, state 16, kernel 4; attention: 4 heads of
  // 32, 2 of keys; 10 experts of 80, top 4, a shared one of 144; vocabulary 512.
  const ModelConfig config = config_of("nemotron-bf16-h336");
  const Loaded loaded(config, open(testing::golden_path("models/nemotron-bf16-h336")),
                      options_for(Compute::kBf16));
  ASSERT_TRUE(loaded.model.ok()) << loaded.model.status().message();
  const int64_t norm = 336 * 2;
  const int64_t mamba = (262 * 336 + 336 * 96 + 5 * 160 + 96 + 3 * 6) * 2;
  const int64_t attention = (128 + 64 + 64 + 128) * 336 * 2;
  const int64_t router = 10 * (336 + 1) * 4;
  const int64_t shared = 2 * 144 * 336 * 2;
  const int64_t expert = 2 * 80 * 336 * 2;
  const int64_t layers = 6 * norm + 2 * mamba + attention + 3 * (router + shared + 4 * expert);
  EXPECT_EQ((*loaded.model)->bytes_per_token(), layers + 2 * norm + 512 * 336 * 2);
  EXPECT_EQ((*loaded.model)->mapped_bytes(), loaded.checkpoint.total_bytes());
  EXPECT_EQ((*loaded.model)->copied_bytes(), 0);
}

// Layers of attention alone have pages, Mamba layers states, and mixtures counts.
TEST(Model, AHybridKeepsPagesStatesAndCountsApart) {
  const ModelConfig config = config_of("nemotron-bf16-h336");
  Loaded loaded(config, open(testing::golden_path("models/nemotron-bf16-h336")),
                options_for(Compute::kBf16));
  ASSERT_TRUE(loaded.model.ok()) << loaded.model.status().message();
  const KvSpec& spec = (*loaded.model)->kv_spec();
  ASSERT_EQ(spec.groups.size(), 1u);
  EXPECT_EQ(spec.groups[0].layers, std::vector<int>{2});
  EXPECT_EQ(spec.page_bytes, spec.layer_bytes);
  EXPECT_EQ(spec.state.layers, (std::vector<int>{0, 4}));
  EXPECT_EQ(spec.state.layer_bytes.count, (3 * 160 + 6 * 16 * 16) * 4);
  const std::vector<int32_t> ids{3, 1, 4, 1, 5};
  std::vector<float> logits(ids.size() * static_cast<size_t>(config.vocab));
  ASSERT_TRUE(loaded.forward(ids, logits).ok());
  const auto counts = (*loaded.model)->expert_token_counts();
  ASSERT_EQ(counts.size(), 3u);
  for (const auto& layer : counts) {
    EXPECT_EQ(std::accumulate(layer.begin(), layer.end(), int64_t{0}), 5 * config.top_k);
  }
}

TEST(Model, CountsTheTokensOfEveryExpert) {
  const ModelConfig config = config_of("mixtral-bf16-h72");
  Loaded loaded(config, open(testing::golden_path("models/mixtral-bf16-h72")),
                options_for(Compute::kBf16));
  ASSERT_TRUE(loaded.model.ok()) << loaded.model.status().message();
  const std::vector<int32_t> ids{3, 1, 4, 1, 5};
  std::vector<float> logits(ids.size() * static_cast<size_t>(config.vocab));
  ASSERT_TRUE(loaded.forward(ids, logits).ok());
  const auto counts = (*loaded.model)->expert_token_counts();
  ASSERT_EQ(std::ssize(counts), config.layers);
  for (const auto& layer : counts) {
    EXPECT_EQ(std::ssize(layer), config.experts);
    EXPECT_EQ(std::accumulate(layer.begin(), layer.end(), int64_t{0}), 5 * config.top_k);
  }
}

TEST(Model, LogitsOfAnotherVocabularyAreRefused) {
  const ModelConfig config = config_of("mixtral-bf16-h72");
  Loaded loaded(config, dummy(expected_tensors(config)), options_for(Compute::kBf16));
  ASSERT_TRUE(loaded.model.ok());
  loaded.config.vocab -= 1;
  const std::vector<int32_t> ids{3};
  std::vector<float> logits(static_cast<size_t>(config.vocab));
  EXPECT_EQ(loaded.forward(ids, logits).code(), StatusCode::kInvalidArgument);
}

// A copy of a checkpoint whose layer 1 has one bad scale byte, in expert 5's down projection.
class DamagedScale : public ::testing::Test {
 protected:
  static constexpr const char* kTensor = "model.layers.1.mlp.experts.down_proj_scales";

  void damage(uint8_t value) {
    const std::string from = testing::golden_path("models/gptoss-mxfp4-h160");
    for (const char* file : {"/config.json", "/model.safetensors"}) {
      std::filesystem::copy_file(from + file, folder_ / ("." + std::string(file)),
                                 std::filesystem::copy_options::overwrite_existing);
    }
    const Checkpoint source = open(from);
    const TensorInfo& scales = *source.find(kTensor);  // U8 [8, 160, 3]
    std::fstream file(folder_ / "model.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(scales.file_offset + 5 * 160 * 3 + 7 * 3 + 2);
    file.put(static_cast<char>(value));
  }

  Loaded load(const ModelOptions& options) {
    return Loaded(config_of("gptoss-mxfp4-h160"), open(folder_.path()), options);
  }

  // Enough different tokens that every expert of every layer is chosen.
  Status run(Loaded& loaded) {
    std::vector<int32_t> ids(kTokens);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 37 % 1024);
    std::vector<float> logits(ids.size() * static_cast<size_t>(loaded.config.vocab));
    return loaded.forward(ids, logits);
  }

  testing::TempFolder folder_;
};

TEST_F(DamagedScale, Mxfp4Exponent255EndsTheStepThatUsesTheExpert) {
  damage(255);
  for (const Compute compute : {Compute::kFloat32, Compute::kBf16}) {
    Loaded loaded = load(options_for(compute));
    ASSERT_TRUE(loaded.model.ok()) << loaded.model.status().message();
    const Status status = run(loaded);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), AllOf(HasSubstr(kTensor), HasSubstr("expert 5"), HasSubstr("255"),
                                        HasSubstr("model.safetensors")));
    // It is no one-time warning.
    EXPECT_EQ(run(loaded).code(), StatusCode::kDataLoss);
  }
}

TEST_F(DamagedScale, Mxfp4Exponent254IsTooLargeForBf16Only) {
  damage(254);
  Loaded bf16 = load(options_for(Compute::kBf16));
  ASSERT_TRUE(bf16.model.ok());
  EXPECT_EQ(run(bf16).code(), StatusCode::kDataLoss);
  Loaded float32 = load(options_for(Compute::kFloat32));
  ASSERT_TRUE(float32.model.ok());
  EXPECT_TRUE(run(float32).ok());
}

TEST_F(DamagedScale, VerifyWeightsFindsItBeforeTheModelIsReady) {
  damage(255);
  ModelOptions options = options_for(Compute::kBf16);
  options.verify_weights = true;
  const Loaded loaded = load(options);
  ASSERT_FALSE(loaded.model.ok());
  EXPECT_EQ(loaded.model.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(loaded.model.status().message(), HasSubstr(kTensor));
}

TEST(VerifyWeights, FindsDamageOfASharedExpertBeforeTheModelIsReady) {
  const std::string from = testing::golden_path("models/nemotron-nvfp4-h112");
  const char* const name = "backbone.layers.1.mixer.shared_experts.up_proj.weight_scale";
  const testing::TempFolder folder;
  const std::string path = folder / "model.safetensors";
  std::filesystem::copy_file(from + "/model.safetensors", path);
  const int64_t at = open(from).find(name)->file_offset;
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(at).put(0x7f);
  ModelOptions options = options_for(Compute::kBf16);
  EXPECT_TRUE(Loaded(config_of("nemotron-nvfp4-h112"), open(folder.path()), options).model.ok());
  options.verify_weights = true;
  const Loaded loaded(config_of("nemotron-nvfp4-h112"), open(folder.path()), options);
  EXPECT_EQ(loaded.model.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(loaded.model.status().message(), AllOf(HasSubstr(path), HasSubstr(name)));
}

}  // namespace
}  // namespace rota
