// What the command line may say of an engine, and its way as JSON into the engine's own process.
//
//   EngineOptions options;
//   options.model = "openai/gpt-oss-20b";
//   ROTA_ASSIGN_OR_RETURN(options.dtype, parse_dtype_choice("bfloat16"));
//   ROTA_ASSIGN_OR_RETURN(auto engine, load_engine(options));      // load_engine.h
//
// Members are named as the flags are: --max-num-seqs is max_num_seqs.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/parallel_options.h"
#include "moe/options.h"

namespace rota {

enum class DtypeChoice { kAuto, kBfloat16, kFloat32 };
enum class WeightsChoice { kMapped, kLocked };
enum class LoadFormat { kAuto, kDummy };
enum class GenerationConfigChoice { kAuto, kNone };  // --generation-config auto|vllm

Result<DtypeChoice> parse_dtype_choice(std::string_view text);      // auto, bfloat16, float32
Result<WeightsChoice> parse_weights_choice(std::string_view text);  // mapped, locked
Result<LoadFormat> parse_load_format(std::string_view text);        // auto, dummy
Result<GenerationConfigChoice> parse_generation_config_choice(std::string_view text);
std::string_view to_string(DtypeChoice choice);
std::string_view to_string(WeightsChoice choice);
std::string_view to_string(LoadFormat format);
std::string_view to_string(GenerationConfigChoice choice);

struct EngineOptions {
  // The model.
  std::string model;              // a folder, or org/name in the Hugging Face cache
  std::string revision = "main";  // of a cached model
  std::string hf_overrides;       // JSON object merged over config.json; empty: nothing
  LoadFormat load_format = LoadFormat::kAuto;
  GenerationConfigChoice generation_config = GenerationConfigChoice::kAuto;
  DtypeChoice dtype = DtypeChoice::kAuto;
  WeightsChoice weights = WeightsChoice::kMapped;
  // All block scales and FP8 codes before ready, not each expert's alone before its use.
  bool verify_weights = false;

  // The machine.
  int threads = 0;  // 0: one for each physical core
  bool pin = true;
  std::string isa;  // ref, avx2, avx512; empty: ROTA_ISA, else the best this CPU has
  MoeOptions moe;
  ParallelOptions parallel;

  // The step and the cache.
  int64_t max_num_seqs = 64;
  // Decode batches captured at the start (step_captures.h): "1,2,4"; empty: 1, 2, 4, 8 ...
  std::string cudagraph_capture_sizes;
  bool enforce_eager = false;            // no captures
  int64_t max_num_batched_tokens = 512;  // a step's tokens: bounds the pause of running streams
  int64_t max_model_len = 0;             // 0: the model's, or what fits
  int64_t max_waiting = 1024;            // queue places behind the running requests
  double memory_utilization = 0.9;       // of the memory available at start
  int64_t kv_cache_memory_bytes = 0;     // 0: from memory_utilization
  bool enable_prefix_caching = true;
  int64_t mamba_block_size = 1024;  // tokens between snapshots of states; 0: the prompt's end alone
  int64_t mamba_snapshot_bytes = -1;  // of the KV cache, for snapshots; -1: an eighth
  int64_t seed = 0;                   // of requests that bring none, and of dummy weights
};

// Every number in its range; the message names the flag.
Status validate(const EngineOptions& options);

nlohmann::json to_json(const EngineOptions& options);
Result<EngineOptions> engine_options_from_json(const nlohmann::json& json);

}  // namespace rota
