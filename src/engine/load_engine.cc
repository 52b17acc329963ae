#include "engine/load_engine.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/progress.h"
#include "engine/engine_plan.h"
#include "engine/format_bytes.h"
#include "engine/parallel_choice.h"
#include "platform/memory.h"

namespace rota {
namespace {

Status choose_cpu(LoadedEngine& engine) {
  engine.cpu = detect_cpu();
  ROTA_ASSIGN_OR_RETURN(engine.isa, isa_of(engine.options, engine.cpu));
  if (engine.options.threads > engine.cpu.logical_cpus) {
    log::warning(
        "--threads {}: this process may run on {} CPUs ({} cores) only; the threads of a step will "
        "wait for one another, {} or fewer are faster",
        engine.options.threads, engine.cpu.logical_cpus, engine.cpu.physical_cores,
        engine.cpu.physical_cores);
  }
  engine.team = std::make_unique<ThreadTeam>(
      ThreadTeamOptions{.threads = engine.options.threads, .pin = engine.options.pin});
  log::info("CPU: {}; using {} with {} threads", describe(engine.cpu), to_string(engine.isa),
            engine.team->size());
  return {};
}

Status read_configs(LoadedEngine& engine) {
  const EngineOptions& options = engine.options;
  ROTA_ASSIGN_OR_RETURN(engine.location, locate_model(options.model, {.revision = options.revision,
                                                                      .cache_dir = {}}));
  ROTA_ASSIGN_OR_RETURN(engine.config, read_model_config(engine.location.dir,
                                                         {.hf_overrides = options.hf_overrides}));
  ROTA_ASSIGN_OR_RETURN(engine.generation, read_generation_config(engine.location.dir));
  const ModelConfig& config = engine.config;
  log::info("model {}: {}, {} layers, hidden {}, {} experts, top {}, vocabulary {}",
            engine.location.name, to_string(config.architecture), config.layers, config.hidden,
            config.experts, config.top_k, config.vocab);
  return {};
}

Result<Checkpoint> open_weights(const LoadedEngine& engine) {
  const LoadOptions progress{.progress = console_progress("loading weights"),
                             .threads = std::max(1, engine.team->size()),
                             .stop = {}};
  if (engine.options.load_format == LoadFormat::kDummy) {
    log::warning("--load-format dummy: the weights are random, and so is every answer");
    const std::vector<TensorSpec> specs = expected_tensors(engine.config);
    return Checkpoint::dummy(specs, static_cast<uint64_t>(engine.options.seed), progress);
  }
  ROTA_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(engine.location.dir));
  ROTA_RETURN_IF_ERROR(check_tensors(engine.config, checkpoint));
  ROTA_RETURN_IF_ERROR(install_mapped_file_guard());
  const int64_t available = memory_info().available_bytes;
  if (engine.options.weights == WeightsChoice::kLocked) {
    ROTA_RETURN_IF_ERROR(checkpoint.lock_in_memory(progress));
  } else if (checkpoint.total_bytes() < available) {
    ROTA_RETURN_IF_ERROR(checkpoint.warm(progress));
  } else {
    log::warning(
        "the weights ({}) are larger than the memory available ({}): steps will wait for the disk",
        format_bytes(checkpoint.total_bytes()), format_bytes(available));
  }
  return checkpoint;
}

Status build_model(LoadedEngine& engine) {
  const ModelOptions model_options = rota::model_options(engine.options, engine.config, engine.isa);
  engine.max_logit_rows = model_options.max_logit_rows;
  ROTA_ASSIGN_OR_RETURN(engine.model,
                        load_model(engine.config, *engine.checkpoint, model_options, *engine.team));
  log::info("dtype {}; weights {}: {}, and {} of copies",
            model_options.compute == Compute::kBf16 ? "bfloat16" : "float32",
            to_string(engine.checkpoint->residence()),
            format_bytes(engine.checkpoint->total_bytes()),
            format_bytes(engine.model->copied_bytes()));
  for (const std::string& line : engine.model->choices()) log::info("{}", line);
  return {};
}

// What would not fit is told before the weights are read and copied.
Status check_memory(const LoadedEngine& engine, const EnginePlan& plan, int64_t available_bytes) {
  MemoryProfile profile =
      memory_profile(plan, engine.options, engine.config, engine.checkpoint->total_bytes());
  profile.available_bytes = available_bytes;
  return status_of(plan_kv_budget(profile));
}

Status size_cache(LoadedEngine& engine, const EnginePlan& plan, int64_t available_bytes) {
  EngineOptions& options = engine.options;
  const Checkpoint& weights = *engine.checkpoint;
  MemoryProfile profile = memory_profile(plan, options, engine.config, weights.total_bytes());
  profile.spec = &engine.model->kv_spec();
  profile.available_bytes = available_bytes;
  profile.copied_bytes = engine.model->copied_bytes();
  profile.weights_can_be_paged = weights.residence() == WeightsResidence::kMapped;
  profile.workspace_bytes = engine.model->workspace_bytes() + logits_bytes(options, engine.config);
  ROTA_ASSIGN_OR_RETURN(engine.kv, plan_kv_budget(profile));
  ROTA_ASSIGN_OR_RETURN(KvCache cache,
                        KvCache::allocate(*profile.spec, engine.kv.pages, engine.kv.slots));
  engine.cache = std::make_unique<KvCache>(std::move(cache));
  options.max_model_len = engine.kv.max_model_len;
  options.max_num_seqs = engine.kv.max_num_seqs;
  if (!engine.kv.note.empty()) log::warning("{}", engine.kv.note);
  log::info(
      "KV cache: {}, {} pages of {} tokens, {} bytes a token: {} tokens fit, "
      "{:.1f} sequences of {} (max_model_len)",
      format_bytes(engine.kv.bytes), engine.kv.pages, kKvBlockTokens,
      profile.spec->bytes_per_token().count, engine.kv.tokens,
      static_cast<double>(engine.kv.tokens) / static_cast<double>(options.max_model_len),
      options.max_model_len);
  if (engine.kv.slots > 0) log::info("states: {}", describe_states(*profile.spec, engine.kv));
  log::info("memory in bytes: weights {}, copies {}, workspace {}, KV cache {}",
            profile.weight_bytes, profile.copied_bytes, profile.workspace_bytes, engine.kv.bytes);
  return {};
}

// Of config.json and generation_config.json together, as both are right in some checkpoints only.
std::vector<int32_t> all_eos_ids(const LoadedEngine& engine) {
  std::vector<int32_t> ids = engine.config.eos_token_ids;
  ids.insert(ids.end(), engine.generation.eos_token_ids.begin(),
             engine.generation.eos_token_ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

Result<LoadedEngine> load_engine(const EngineOptions& options) {
  ROTA_RETURN_IF_ERROR(validate(options));
  ROTA_RETURN_IF_ERROR(check_one_rank(options.parallel));
  LoadedEngine engine;
  engine.options = options;
  engine.options.max_num_seqs = std::min(options.max_num_seqs, options.max_num_batched_tokens);
  const int64_t available_bytes = memory_info().available_bytes;
  ROTA_RETURN_IF_ERROR(choose_cpu(engine));
  ROTA_RETURN_IF_ERROR(read_configs(engine));
  ROTA_ASSIGN_OR_RETURN(const EnginePlan plan,
                        plan_engine(engine.options, engine.config, engine.cpu));
  ROTA_ASSIGN_OR_RETURN(Checkpoint checkpoint, open_weights(engine));
  engine.checkpoint = std::make_unique<Checkpoint>(std::move(checkpoint));
  ROTA_RETURN_IF_ERROR(check_memory(engine, plan, available_bytes));
  ROTA_RETURN_IF_ERROR(build_model(engine));
  ROTA_RETURN_IF_ERROR(size_cache(engine, plan, available_bytes));
  log::info("sampling defaults: {}", describe_sampling(engine.info().default_sampling));
  return engine;
}

EngineInfo LoadedEngine::info() const {
  EngineInfo info;
  info.model_type = to_string(config.architecture);
  info.vocab_size = config.vocab;
  info.max_model_len = options.max_model_len;
  info.kv_tokens = kv.tokens;
  info.eos_token_ids = all_eos_ids(*this);
  info.moe_layers = config.moe_layers();
  info.experts = config.experts;
  info.top_k = config.top_k;
  info.choices = model->choices();
  info.max_sequence_tokens = kv.max_sequence_tokens;
  info.max_num_seqs = options.max_num_seqs;
  info.max_waiting = options.max_waiting;
  if (options.generation_config == GenerationConfigChoice::kAuto) {
    info.default_sampling = default_sampling(generation);
  }
  return info;
}

SamplingParams default_sampling(const GenerationConfig& generation) {
  SamplingParams params;
  if (generation.temperature) params.temperature = std::min(*generation.temperature, 2.0);
  if (generation.top_p) params.top_p = *generation.top_p;
  if (generation.min_p) params.min_p = *generation.min_p;
  if (generation.top_k) params.top_k = *generation.top_k;
  if (generation.repetition_penalty) {
    params.repetition_penalty = std::clamp(*generation.repetition_penalty, 0.01, 100.0);
  }
  return params;
}

std::string describe_sampling(const SamplingParams& params) {
  return fmt::format("temperature {}, top_p {}, top_k {}, min_p {}, repetition_penalty {}",
                     params.temperature, params.top_p,
                     params.top_k > 0 ? std::to_string(params.top_k) : "off", params.min_p,
                     params.repetition_penalty);
}

}  // namespace rota
