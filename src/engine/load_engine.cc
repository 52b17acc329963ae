#include "engine/load_engine.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/json_file.h"
#include "checkpoint/progress.h"
#include "engine/engine_plan.h"
#include "engine/format_bytes.h"
#include "engine/gather_topology.h"
#include "engine/hash.h"
#include "engine/host_memory.h"
#include "engine/parallel_choice.h"
#include "engine/tensor_census.h"
#include "moe/own_parts.h"
#include "platform/build_id.h"
#include "platform/read_file.h"

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
  // What an outer mpirun leaves of a machine unless it is told otherwise.
  if (engine.ranks.world->ranks() > 1 && engine.ranks.world->rank() == 0 &&
      engine.cpu.logical_cpus == 1 && ::sysconf(_SC_NPROCESSORS_ONLN) > 1) {
    log::warning(
        "this process may use 1 of the {} CPUs of its host, and its ranks share it: inside another "
        "mpirun give that one --bind-to none, in a container or an allocation ask for more CPUs",
        ::sysconf(_SC_NPROCESSORS_ONLN));
  }
  const ThreadTeamOptions team = team_of_rank(engine.options.threads, engine.options.pin,
                                              engine.cpu.physical_cores, engine.host);
  engine.options.threads = team.threads;
  engine.team = std::make_unique<ThreadTeam>(team);
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

// Experts of other ranks are left alone, where they are whole and stay.
OwnParts own_parts_of(const LoadedEngine& engine) {
  const MoeParallel& parallel = engine.ranks.parallel;
  if (!parallel.shape.expert_parallel || parallel.shape.ranks() == 1 || parallel.experts_move) {
    return {};
  }
  const auto map = ExpertMap::make(engine.config.experts, parallel.shape.ranks(),
                                   parallel.shape.rank, parallel.placement);
  return map.ok() ? own_parts(*map) : OwnParts();
}

LoadOptions load_options(const LoadedEngine& engine) {
  const bool shows = engine.ranks.world->rank() == 0;
  return {.progress = shows ? console_progress("loading weights") : LoadProgress(),
          .threads = std::max(1, engine.team->size()),
          .part = engine.host.index,
          .parts = engine.host.count(),
          .own = own_parts_of(engine),
          .stop = {}};
}

Status open_weights(LoadedEngine& engine) {
  if (engine.options.load_format == LoadFormat::kDummy) {
    log::warning("--load-format dummy: the weights are random, and so is every answer");
    const std::vector<TensorSpec> specs = expected_tensors(engine.config);
    ROTA_ASSIGN_OR_RETURN(
        Checkpoint dummy,
        Checkpoint::dummy(specs, static_cast<uint64_t>(engine.options.seed), load_options(engine)));
    engine.checkpoint = std::make_unique<Checkpoint>(std::move(dummy));
    return {};
  }
  ROTA_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(engine.location.dir));
  ROTA_RETURN_IF_ERROR(check_tensors(engine.config, checkpoint));
  engine.checkpoint = std::make_unique<Checkpoint>(std::move(checkpoint));
  return install_mapped_file_guard();
}

Status read_ahead(LoadedEngine& engine) {
  Checkpoint& checkpoint = *engine.checkpoint;
  if (checkpoint.residence() == WeightsResidence::kDummy) return {};
  const int64_t available = engine.host.available_bytes;
  if (engine.options.weights == WeightsChoice::kLocked) {
    return checkpoint.lock_in_memory(load_options(engine));
  }
  if (checkpoint.total_bytes() < available) return checkpoint.warm(load_options(engine));
  log::warning(
      "the weights ({}) are larger than the memory available ({}): steps will wait for the disk",
      format_bytes(checkpoint.total_bytes()), format_bytes(available));
  return {};
}

Status build_model(LoadedEngine& engine, LoadMeeting& meeting) {
  ModelOptions model_options = rota::model_options(engine.options, engine.config, engine.isa);
  model_options.ranks = engine.ranks;
  model_options.ranks.meet = [&](const Status& status) { return meeting.meet(status); };
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

// Random and copied weights are memory of each rank's own: what it holds of experts, and all else.
int64_t own_bytes(const LoadedEngine& engine) {
  const OwnParts own = own_parts_of(engine);
  int64_t bytes = 0;
  for (const TensorInfo& tensor : engine.checkpoint->tensors()) {
    const auto parts =
        own ? own({tensor.name, tensor.dtype, tensor.shape}, tensor.byte_size) : std::nullopt;
    if (!parts) bytes += tensor.byte_size;
    for (const TensorPart& part : parts.value_or(std::vector<TensorPart>{})) {
      bytes += part.end - part.begin;
    }
  }
  return bytes;
}

// The budget's question before a weight is read: what would not fit is told then. kv: becomes this
// rank's.
Result<MemoryProfile> planned_memory(const LoadedEngine& engine, const EnginePlan& plan,
                                     KvSpec& kv) {
  const Checkpoint& weights = *engine.checkpoint;
  MemoryProfile profile =
      memory_profile(plan, engine.options, engine.config, weights.total_bytes());
  profile.available_bytes = engine.host.available_bytes;
  if (engine.ranks.world->ranks() == 1) return profile;
  const TensorCensus census = take_census(expected_tensors(engine.config));
  ROTA_ASSIGN_OR_RETURN(const ParallelChoice parallel, choose_parallel(engine.options.parallel));
  ROTA_ASSIGN_OR_RETURN(const std::vector<RankPlan> all, plan_ranks({.config = &engine.config,
                                                                     .engine = &plan,
                                                                     .census = &census,
                                                                     .moe = engine.options.moe,
                                                                     .parallel = parallel}));
  kv = all[static_cast<size_t>(engine.ranks.world->rank())].kv;
  profile.spec = &kv;
  share_host(all, engine.host.ranks, parallel.shape.tp, profile);
  if (weights.residence() == WeightsResidence::kDummy) {
    profile.weight_bytes = own_bytes(engine) * engine.host.count();
  }
  return profile;
}

// Now that it is there: copies and workspaces as they are, of all ranks of this host.
Status measure_memory(const LoadedEngine& engine, MemoryProfile& profile) {
  struct Taken {
    int64_t copied;
    int64_t workspace;
  };
  const Taken mine{
      .copied = engine.model->copied_bytes(),
      .workspace = engine.model->workspace_bytes() + logits_bytes(engine.options, engine.config)};
  ROTA_ASSIGN_OR_RETURN(const std::vector<Taken> all, gather_values(*engine.ranks.world, mine));
  profile.weights_can_be_paged = engine.checkpoint->residence() == WeightsResidence::kMapped;
  if (engine.checkpoint->residence() == WeightsResidence::kCopied) {
    profile.weight_bytes = own_bytes(engine) * engine.host.count();
  }
  profile.copied_bytes = profile.workspace_bytes = 0;
  for (const int rank : engine.host.ranks) {
    profile.copied_bytes += all[static_cast<size_t>(rank)].copied;
    profile.workspace_bytes += all[static_cast<size_t>(rank)].workspace;
  }
  return {};
}

// What this rank can afford, then what all can.
Result<KvBudget> agree_on_budget(const LoadedEngine& engine, const MemoryProfile& profile) {
  Communicator& world = *engine.ranks.world;
  Result<KvBudget> mine = plan_kv_budget(profile);
  ROTA_RETURN_IF_ERROR(agree_ok(world, status_of(mine)));
  if (world.ranks() == 1) return mine;
  struct Limits {
    int64_t pages, snapshots, max_num_seqs, max_model_len;
  };
  const Limits limits{mine->pages, mine->snapshots, mine->max_num_seqs, mine->max_model_len};
  ROTA_ASSIGN_OR_RETURN(const std::vector<Limits> all, gather_values(world, limits));
  std::vector<KvBudget> planned(1, *mine);
  for (const Limits& it : all) {
    KvBudget& budget = planned.emplace_back();
    budget.pages = it.pages;
    budget.snapshots = it.snapshots;
    budget.max_num_seqs = it.max_num_seqs;
    budget.max_model_len = it.max_model_len;
  }
  return least_budget(*profile.spec, planned);
}

Status size_cache(LoadedEngine& engine, MemoryProfile profile) {
  EngineOptions& options = engine.options;
  ROTA_RETURN_IF_ERROR(measure_memory(engine, profile));
  ROTA_ASSIGN_OR_RETURN(engine.kv, agree_on_budget(engine, profile));
  Result<KvCache> cache = KvCache::allocate(*profile.spec, engine.kv.pages, engine.kv.slots);
  ROTA_RETURN_IF_ERROR(agree_ok(*engine.ranks.world, status_of(cache)));
  engine.cache = std::make_unique<KvCache>(std::move(*cache));
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
  const int ranks = profile.ranks_of_host;
  log::info("memory in bytes{}: weights {}, copies {}, workspace {}, KV cache {}",
            ranks > 1 ? fmt::format(" of the {} ranks of this host together", ranks) : "",
            profile.weight_bytes, profile.copied_bytes, profile.workspace_bytes,
            engine.kv.bytes * ranks);
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

Result<ParallelChoice> check_ranks(const EngineOptions& options, int ranks) {
  ROTA_RETURN_IF_ERROR(validate(options));
  ROTA_ASSIGN_OR_RETURN(ParallelChoice parallel, choose_parallel(options.parallel));
  if (parallel.shape.ranks() == ranks) return parallel;
  return invalid_argument(
      "--tensor-parallel-size {} x --data-parallel-size {} is {} ranks, and there are {}",
      parallel.shape.tp, parallel.shape.dp, parallel.shape.ranks(), ranks);
}

// Which of the ranks this is.
Status join_ranks(LoadedEngine& engine, Communicator& world) {
  const Result<ParallelChoice> parallel = check_ranks(engine.options, world.ranks());
  ROTA_RETURN_IF_ERROR(agree_ok(world, status_of(parallel)));
  if (world.ranks() == 1) return {};
  engine.ranks.world = &world;
  engine.ranks.parallel = parallel->of_rank(world.rank());
  engine.options.verify_weights = true;
  if (parallel->shape.tp == 1) return {};
  ROTA_ASSIGN_OR_RETURN(engine.tensor, world.split(world.rank() / parallel->shape.tp));
  engine.ranks.tensor = engine.tensor.get();
  return {};
}

// Everything that can be refused before a weight is read.
Result<EnginePlan> prepare(LoadedEngine& engine) {
  ROTA_RETURN_IF_ERROR(choose_cpu(engine));
  ROTA_RETURN_IF_ERROR(read_configs(engine));
  ROTA_ASSIGN_OR_RETURN(EnginePlan plan, plan_engine(engine.options, engine.config, engine.cpu));
  ROTA_RETURN_IF_ERROR(open_weights(engine));
  return plan;
}

std::string digest(uint64_t hash) { return fmt::format("hash {:016x}", hash); }

std::string digest_of_file(const LoadedEngine& engine, std::string_view name) {
  const auto text = read_file(fmt::format("{}/{}", engine.location.dir, name), kMaxJsonFileBytes);
  return text.ok() ? digest(hash_text(*text)) : "none";
}

// What must be the same on all ranks. The weights' hash is that of their names, types and shapes.
std::vector<Agreed> what_was_loaded(const LoadedEngine& engine) {
  std::vector<Agreed> same = {{"the build", build_id()},
                              {"the instruction set", std::string(to_string(engine.isa))}};
  const nlohmann::json options = to_json(engine.options);
  for (const auto& [flag, value] : options.items()) {
    if (flag != "threads") same.push_back({fmt::format("option {}", flag), value.dump()});
  }
  for (const std::string_view file : {"config.json", "generation_config.json"}) {
    same.push_back({std::string(file), digest_of_file(engine, file)});
  }
  same.push_back({"the weights' index", digest(engine.checkpoint->manifest_hash())});
  return same;
}

Status agree_on_model(LoadedEngine& engine) {
  Communicator& world = *engine.ranks.world;
  if (world.ranks() == 1) return {};
  const std::vector<Agreed> same = what_was_loaded(engine);
  ROTA_RETURN_IF_ERROR(agree_same(world, same));
  engine.hash = kHashStart;
  for (const Agreed& it : same) engine.hash = hash_text(it.value, hash_text(it.what, engine.hash));
  return {};
}

// Returns what the cache is to be sized by.
Result<MemoryProfile> load_weights(LoadedEngine& engine, const EnginePlan& plan,
                                   LoadMeeting& meeting) {
  KvSpec kv;
  ROTA_ASSIGN_OR_RETURN(MemoryProfile profile, planned_memory(engine, plan, kv));
  ROTA_RETURN_IF_ERROR(status_of(plan_kv_budget(profile)));
  ROTA_RETURN_IF_ERROR(read_ahead(engine));
  ROTA_RETURN_IF_ERROR(build_model(engine, meeting));
  profile.spec = &engine.model->kv_spec();
  return profile;
}

// All that comes before a weight is read, on all ranks.
Result<EnginePlan> prepare_together(LoadedEngine& engine, const EngineOptions& options,
                                    Communicator& world) {
  engine.options = options;
  engine.options.max_num_seqs = std::min(options.max_num_seqs, options.max_num_batched_tokens);
  ROTA_RETURN_IF_ERROR(join_ranks(engine, world));
  ROTA_ASSIGN_OR_RETURN(engine.host, find_host_ranks(world));
  Result<EnginePlan> plan = prepare(engine);
  ROTA_RETURN_IF_ERROR(agree_ok(world, status_of(plan)));
  ROTA_RETURN_IF_ERROR(agree_on_model(engine));
  return plan;
}

Result<LoadCheck> check_memory(const LoadedEngine& engine, EnginePlan plan) {
  KvSpec kv;
  ROTA_ASSIGN_OR_RETURN(plan.workspace_bytes,
                        plan_step_memory(engine.options, engine.config, engine.isa));
  ROTA_ASSIGN_OR_RETURN(const MemoryProfile profile, planned_memory(engine, plan, kv));
  ROTA_ASSIGN_OR_RETURN(const KvBudget budget, plan_kv_budget(profile));
  return LoadCheck{.ranks_of_host = engine.host.count(),
                   .threads = engine.team->size(),
                   .cpus = engine.team->cpus(),
                   .folder = engine.location.dir,
                   .file_bytes = engine.checkpoint->total_bytes(),
                   .weight_bytes = profile.weight_bytes,
                   .copied_bytes = profile.copied_bytes,
                   .workspace_bytes = profile.workspace_bytes,
                   .available_bytes = profile.available_bytes,
                   .kv_tokens = budget.tokens,
                   .note = budget.note};
}

}  // namespace

Result<LoadCheck> check_load(const EngineOptions& options, Communicator& world) {
  LoadedEngine engine;
  ROTA_ASSIGN_OR_RETURN(const EnginePlan plan, prepare_together(engine, options, world));
  Result<LoadCheck> found = check_memory(engine, plan);
  ROTA_RETURN_IF_ERROR(agree_ok(world, status_of(found)));
  return found;
}

Result<LoadedEngine> load_engine(const EngineOptions& options, Communicator& world) {
  LoadedEngine engine;
  const Result<EnginePlan> plan = prepare_together(engine, options, world);
  if (!plan.ok()) return plan.status();
  LoadMeeting meeting(world);
  const Result<MemoryProfile> memory = load_weights(engine, *plan, meeting);
  ROTA_RETURN_IF_ERROR(meeting.meet(status_of(memory)));
  ROTA_RETURN_IF_ERROR(size_cache(engine, *memory));
  ROTA_ASSIGN_OR_RETURN(engine.topology, gather_topology(engine));
  if (world.ranks() > 1) {
    for (const std::string& line : describe(engine.topology)) log::info("{}", line);
  }
  log::info("sampling defaults: {}", describe_sampling(engine.info().default_sampling));
  return engine;
}

EngineInfo LoadedEngine::info() const {
  EngineInfo info;
  info.model_type = to_string(config.architecture);
  info.vocab_size = config.vocab;
  info.max_model_len = options.max_model_len;
  info.kv_tokens = kv.tokens * ranks.shape().dp;
  info.eos_token_ids = all_eos_ids(*this);
  info.moe_layers = config.moe_layers();
  info.experts = config.experts;
  info.top_k = config.top_k;
  info.choices = model->choices();
  info.max_sequence_tokens = kv.max_sequence_tokens;
  info.max_num_seqs = options.max_num_seqs * ranks.shape().dp;
  info.max_waiting = options.max_waiting;
  info.topology = topology;
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
