#include "rota/flags.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "platform/read_file.h"

namespace rota {
namespace {

std::string refuse_switch(const std::string& text) {
  try {
    CLI::detail::to_flag_value(text);
    return {};
  } catch (const std::invalid_argument&) {
    return fmt::format("\"{}\" is neither true nor false", text);
  }
}

}  // namespace

CLI::Option* list_flag(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                       const std::string& help) {
  return app.add_option(name, values, help)
      ->envname(environment_name(name))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
}

CLI::Option* toggle(CLI::App& app, const std::string& name, bool& value, const std::string& help) {
  return app.add_flag("--" + name + ",!--no-" + name, value, help)
      ->check(CLI::Validator(refuse_switch, ""))
      ->envname(environment_name("--" + name));
}

CLI::Option* hostfile_flag(CLI::App& app, std::string& path) {
  return flag(app, "--hostfile", path,
              "of several ranks: MPI's list of hosts, one a line with slots=N; default: this host")
      ->type_name("FILE")
      ->group("Ranks");
}

Result<std::string> read_flag_file(std::string_view flag, const std::string& path) {
  constexpr int64_t kMaxBytes = 1 << 30;
  Result<std::string> text = read_file(path, kMaxBytes);
  if (!text.ok()) return text.status().with_context(flag);
  return text;
}

void expand_short_flags(std::vector<std::string>& arguments) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kShort = {
      {{"-tp", "--tensor-parallel-size"},
       {"-dp", "--data-parallel-size"},
       {"-ep", "--enable-expert-parallel"}}};
  for (std::string& argument : arguments) {
    if (argument == "--") return;
    for (const auto& [name, full] : kShort) {
      const bool whole = argument == name;
      if (!whole && !argument.starts_with(std::string(name) + "=")) continue;
      argument.replace(0, name.size(), full);
      break;
    }
  }
}

void EngineFlags::add_to(CLI::App& app) {
  EngineOptions& o = options;
  app.add_option("MODEL", o.model, "a checkpoint's folder, or org/name in the Hugging Face cache")
      ->required();
  app.add_option("--config", "a YAML file of flags")->type_name("FILE");

  const std::string model = "Model";
  flag(app, "--revision", o.revision, "branch, tag or commit of a cached model")->group(model);
  flag(app, "--hf-overrides", o.hf_overrides, "JSON merged over config.json")
      ->type_name("JSON")
      ->group(model);
  flag(app, "--load-format", load_format, "auto, or dummy: random weights from config.json alone")
      ->group(model);
  flag(app, "--generation-config", generation_config,
       "auto: sampling defaults from generation_config.json; vllm: neutral ones")
      ->group(model);
  flag(app, "--dtype", dtype, "auto, bfloat16 (matmul inputs and KV cache) or float32 (everything)")
      ->group(model);
  flag(app, "--weights", weights, "mapped, or locked: in memory whatever the page cache does")
      ->group(model);
  toggle(
      app, "verify-weights", o.verify_weights,
      "check all block scales and FP8 codes, of experts and of all other layers, before the model "
      "is ready")
      ->group(model);

  const std::string machine = "Machine";
  flag(app, "--threads", o.threads, "threads of a step; 0: one for each physical core")
      ->group(machine);
  toggle(app, "pin", o.pin, "pin each thread to a core (default)")->group(machine);
  flag(app, "--isa", o.isa, "ref, avx2 or avx512 instead of the best that the CPU has")
      ->group(machine);
  flag(app, "--moe-backend", o.moe.backend, "experts backend; see `rota backends`")->group(machine);
  flag(app, "--moe-hidden-alignment", o.moe.hidden_alignment,
       "pad the experts' hidden width to a multiple of N")
      ->group(machine);
  flag(app, "--moe-intermediate-alignment", o.moe.intermediate_alignment,
       "pad the experts' intermediate width to a multiple of N")
      ->group(machine);

  const std::string ranks = "Ranks";
  flag(app, "--tensor-parallel-size", o.parallel.tensor_parallel_size,
       "ranks that share every layer (-tp)")
      ->group(ranks);
  flag(app, "--data-parallel-size", o.parallel.data_parallel_size,
       "groups of those, each with requests of its own (-dp)")
      ->group(ranks);
  toggle(app, "enable-expert-parallel", o.parallel.enable_expert_parallel,
         "deal whole experts to all ranks in place of cutting each (-ep)")
      ->group(ranks);
  flag(app, "--all2all-backend", o.parallel.all2all_backend,
       "how tokens reach their experts' ranks: allgather_reducescatter (default), alltoallv, "
       "low_latency, or a name of vLLM's")
      ->group(ranks);
  flag(app, "--expert-placement-strategy", o.parallel.expert_placement_strategy,
       "linear: neighbours on one rank, or round_robin")
      ->group(ranks);
  toggle(app, "enable-eplb", o.parallel.enable_eplb,
         "move experts between ranks while they serve, to even out the load")
      ->group(ranks);
  flag(app, "--num-redundant-experts", o.parallel.num_redundant_experts,
       "with --enable-eplb: copies of popular experts in each layer, over all ranks")
      ->group(ranks);
  flag(app, "--eplb-window-size", o.parallel.eplb_window_size,
       "with --enable-eplb: steps whose load is looked at")
      ->group(ranks);
  flag(app, "--eplb-step-interval", o.parallel.eplb_step_interval,
       "with --enable-eplb: steps between two looks")
      ->group(ranks);
  flag(app, "--rank-timeout", o.parallel.rank_timeout,
       "seconds that ranks wait for one that does not come")
      ->group(ranks);
  toggle(app, "check-collectives", o.parallel.check_collectives,
         "compare every operation over the ranks: slower, for finding faults")
      ->group(ranks);

  const std::string scheduling = "Scheduling and memory";
  flag(app, "--max-num-seqs", o.max_num_seqs, "requests that run at once")->group(scheduling);
  flag(app, "--max-num-batched-tokens", o.max_num_batched_tokens, "tokens of a step")
      ->group(scheduling);
  flag(app, "--cudagraph-capture-sizes", o.cudagraph_capture_sizes,
       "decode batches whose step is captured at the start, e.g. 1,2,4 (default 1, 2, 4, 8 ... up "
       "to --max-num-seqs)")
      ->group(scheduling);
  toggle(app, "enforce-eager", o.enforce_eager, "capture no steps")->group(scheduling);
  flag(app, "--max-model-len", o.max_model_len, "longest sequence; 0: the model's, or what fits")
      ->group(scheduling);
  flag(app, "--max-waiting", o.max_waiting, "requests that may wait before clients get 429")
      ->group(scheduling);
  flag(app, "--memory-utilization", o.memory_utilization, "share of the free memory to use")
      ->group(scheduling);
  flag(app, "--kv-cache-memory-bytes", o.kv_cache_memory_bytes,
       "size of the KV cache; 0: from the utilization")
      ->group(scheduling);
  toggle(app, "enable-prefix-caching", o.enable_prefix_caching,
         "reuse the KV cache of equal beginnings (default)")
      ->group(scheduling);
  flag(app, "--mamba-block-size", o.mamba_block_size,
       "recurrent layers: tokens between snapshots of their state, from which equal beginnings are "
       "reused; 0: at the end of each prompt alone")
      ->group(scheduling);
  flag(app, "--mamba-snapshot-bytes", o.mamba_snapshot_bytes,
       "bytes of the KV cache that snapshots may take; -1: an eighth")
      ->group(scheduling);
  flag(app, "--seed", o.seed, "of requests that bring none, and of dummy weights")
      ->group(scheduling);
}

Result<EngineOptions> EngineFlags::resolve() const {
  EngineOptions resolved = options;
  ROTA_ASSIGN_OR_RETURN(resolved.dtype, parse_dtype_choice(dtype));
  ROTA_ASSIGN_OR_RETURN(resolved.weights, parse_weights_choice(weights));
  ROTA_ASSIGN_OR_RETURN(resolved.load_format, parse_load_format(load_format));
  ROTA_ASSIGN_OR_RETURN(resolved.generation_config,
                        parse_generation_config_choice(generation_config));
  ROTA_RETURN_IF_ERROR(validate(resolved));
  return resolved;
}

void SamplingFlags::add_to(CLI::App& app) {
  const std::string group = "Sampling (default: the model's own)";
  const auto add = [&](const char* name, auto SamplingParams::* member, const char* help) {
    using Value = std::remove_reference_t<decltype(values.*member)>;
    return check_type<Value>(app.add_option(name, values.*member, help))
        ->envname(environment_name(name))
        ->group(group);
  };
#define ROTA_SAMPLING_FLAG(name, member, help)  \
  given_.emplace_back(                          \
      add(name, &SamplingParams::member, help), \
      [](SamplingParams& to, const SamplingParams& from) { to.member = from.member; })
  ROTA_SAMPLING_FLAG("--temperature", temperature, "0: greedy");
  ROTA_SAMPLING_FLAG("--top-k", top_k, "only the K most likely tokens; 0: all");
  ROTA_SAMPLING_FLAG("--top-p", top_p, "only the most likely tokens that make up P");
  ROTA_SAMPLING_FLAG("--min-p", min_p, "only tokens at least P times as likely as the best");
  ROTA_SAMPLING_FLAG("--presence-penalty", presence_penalty, "taken off tokens that have come");
  ROTA_SAMPLING_FLAG("--frequency-penalty", frequency_penalty,
                     "taken off for each time that a token has come");
  ROTA_SAMPLING_FLAG("--repetition-penalty", repetition_penalty,
                     "divides the logits of tokens that have come");
#undef ROTA_SAMPLING_FLAG
}

Status SamplingFlags::check() const {
  const Status status = validate(over({}), std::numeric_limits<int64_t>::max());
  if (status.ok()) return {};
  // "top_p: 7 is not in (0, 1]": a flag is named as its field is, with dashes.
  std::string message = "--" + status.message();
  const auto name_end = message.begin() + static_cast<std::ptrdiff_t>(message.find(':'));
  std::replace(message.begin(), name_end, '_', '-');
  return {status.code(), std::move(message)};
}

SamplingParams SamplingFlags::over(SamplingParams defaults) const {
  for (const auto& [option, copy] : given_) {
    if (option->count() > 0) copy(defaults, values);
  }
  return defaults;
}

}  // namespace rota
