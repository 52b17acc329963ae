// The small golden models as engines for tests: loaded as `rota` loads any model, float32.
//
//   std::unique_ptr<LoadedEngine> engine = small_engine("gptoss-mxfp4-h288", {.pages = 12});
//   Collected out = generate(core, {request_of(prompt, 8)});
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_core.h"
#include "engine/load_engine.h"

namespace rota::testing {

inline const std::vector<std::string>& small_models() {
  static const std::vector<std::string> names = {"gptoss-bf16-h160", "gptoss-mxfp4-h160",
                                                 "gptoss-mxfp4-h288", "mixtral-bf16-h72",
                                                 "nemotron-bf16-h336"};
  return names;
}

inline std::string model_dir(const std::string& name) {
  return std::string(ROTA_SOURCE_DIR) + "/tests/goldens/models/" + name;
}

inline nlohmann::json golden(const std::string& name) {
  std::ifstream file(model_dir(name) + "/golden.json");
  return nlohmann::json::parse(file);
}

struct SmallEngineOptions {
  int64_t pages = 0;  // of the KV cache; 0: plenty
  int64_t max_num_seqs = 8;
  int64_t max_num_batched_tokens = 64;
  int64_t max_model_len = 512;
  bool prefix_caching = true;
  int64_t mamba_block_size = 1024;
  int64_t snapshots = 8;  // beside the running sequences' states, where `pages` are given
  std::string dtype = "float32";
};

inline EngineOptions small_options(const std::string& name, const SmallEngineOptions& small = {}) {
  EngineOptions options;
  options.model = model_dir(name);
  options.dtype = parse_dtype_choice(small.dtype).value();
  options.threads = 2;
  options.pin = false;
  options.max_num_seqs = small.max_num_seqs;
  options.max_num_batched_tokens = small.max_num_batched_tokens;
  options.max_model_len = small.max_model_len;
  options.max_waiting = 64;
  options.kv_cache_memory_bytes = 64 << 20;
  options.enable_prefix_caching = small.prefix_caching;
  options.mamba_block_size = small.mamba_block_size;
  return options;
}

// A cache of just so many pages and slots, however a budget would share its bytes out.
inline std::unique_ptr<LoadedEngine> with_cache_of(LoadedEngine loaded,
                                                   const SmallEngineOptions& small) {
  const KvSpec& spec = loaded.model->kv_spec();
  loaded.kv.pages = small.pages;
  loaded.kv.snapshots = small.snapshots;
  loaded.kv.slots = loaded.kv.max_num_seqs + small.snapshots;
  loaded.kv.max_sequence_tokens = longest_sequence(spec, small.pages);
  loaded.cache =
      std::make_unique<KvCache>(KvCache::allocate(spec, loaded.kv.pages, loaded.kv.slots).value());
  return std::make_unique<LoadedEngine>(std::move(loaded));
}

// On the heap: an EngineCore keeps a reference.
inline std::unique_ptr<LoadedEngine> small_engine(const std::string& name,
                                                  const SmallEngineOptions& small = {}) {
  EngineOptions options = small_options(name, small);
  if (small.pages > 0) {
    LoadedEngine probe = load_engine(options).value();
    if (probe.kv.slots > 0) return with_cache_of(std::move(probe), small);
    options.kv_cache_memory_bytes = small.pages * probe.model->kv_spec().page_bytes.count;
  }
  return std::make_unique<LoadedEngine>(load_engine(options).value());
}

inline EngineRequest request_of(std::vector<int32_t> prompt, int64_t max_tokens,
                                double temperature = 0) {
  static std::atomic<int64_t> number = 0;  // ranks are threads
  EngineRequest request;
  request.id = "request-" + std::to_string(number++);
  request.prompt = std::move(prompt);
  request.sampling.max_tokens = max_tokens;
  request.sampling.temperature = temperature;
  request.sampling.ignore_eos = true;
  return request;
}

// All that came of one request.
struct Collected {
  std::vector<int32_t> tokens;
  std::vector<OutputToken> output_tokens;
  std::vector<std::optional<PositionLogprobs>> prompt_logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  std::optional<int32_t> stop_token;
  int64_t cached_tokens = 0;
  Status status;
  int outputs_after_the_end = 0;

  void add(const RequestOutput& output) {
    if (finish_reason != FinishReason::kNone) ++outputs_after_the_end;
    for (const OutputToken& token : output.tokens) {
      tokens.push_back(token.id);
      output_tokens.push_back(token);
    }
    if (!output.prompt_logprobs.empty()) prompt_logprobs = output.prompt_logprobs;
    finish_reason = output.finish_reason;
    stop_token = output.stop_token;
    cached_tokens = output.cached_tokens;
    status = output.status;
  }
};

// Runs the requests together until all are done.
inline std::vector<Collected> generate(EngineCore& core, std::vector<EngineRequest> requests) {
  std::vector<Collected> all(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const Status status = core.add(std::move(requests[i]),
                                   [&all, i](const RequestOutput& output) { all[i].add(output); });
    EXPECT_TRUE(status.ok()) << status.message();
  }
  while (core.has_work()) core.step();
  return all;
}

inline Collected generate_one(EngineCore& core, EngineRequest request) {
  return generate(core, {std::move(request)}).front();
}

// The same bits, logprobs included.
inline void expect_same(const Collected& a, const Collected& b, const std::string& what) {
  EXPECT_EQ(a.tokens, b.tokens) << what;
  EXPECT_EQ(a.finish_reason, b.finish_reason) << what;
  ASSERT_EQ(a.output_tokens.size(), b.output_tokens.size()) << what;
  const auto same_logprobs = [](const std::optional<PositionLogprobs>& x,
                                const std::optional<PositionLogprobs>& y) {
    if (x.has_value() != y.has_value()) return false;
    if (!x) return true;
    return std::equal(x->begin(), x->end(), y->begin(), y->end(),
                      [](const TokenLogprob& p, const TokenLogprob& q) {
                        return p.token == q.token && p.logprob == q.logprob && p.rank == q.rank;
                      });
  };
  for (size_t i = 0; i < a.output_tokens.size(); ++i) {
    EXPECT_TRUE(same_logprobs(a.output_tokens[i].logprobs, b.output_tokens[i].logprobs))
        << what << ", logprobs of token " << i;
  }
  ASSERT_EQ(a.prompt_logprobs.size(), b.prompt_logprobs.size()) << what;
  for (size_t i = 0; i < a.prompt_logprobs.size(); ++i) {
    EXPECT_TRUE(same_logprobs(a.prompt_logprobs[i], b.prompt_logprobs[i]))
        << what << ", logprobs of prompt token " << i;
  }
}

}  // namespace rota::testing
