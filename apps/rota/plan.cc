// rota plan MODEL: every width, choice and byte before a weight is read, from config.json and
// tensor headers only.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/locate.h"
#include "engine/host_memory.h"
#include "platform/cpu.h"
#include "platform/fma_peak.h"
#include "platform/memory.h"
#include "platform/topology.h"
#include "rota/command.h"
#include "rota/flags.h"
#include "rota/model_plan.h"
#include "supervisor/hostfile.h"

namespace rota {
namespace {

constexpr int64_t kUsualContext = 4096;

struct PlanFlags {
  EngineFlags engine;
  std::string hostfile;
  bool json = false;
  int64_t context = 0;                 // 0: kUsualContext, or the model's where that is less
  std::optional<double> bandwidth_gb;  // a rank's, in GB/s
  std::optional<double> peak_gflop;    // likewise, in GFLOP/s
  bool measure = false;
};

// Wide enough for any machine, narrow enough that every rate is a number that can be read.
Status check_speed(std::string_view flag, std::string_view unit, std::optional<double> value) {
  constexpr double kLeast = 1e-3, kMost = 1e9;
  if (!value || (*value >= kLeast && *value <= kMost)) return {};  // NaN is in no range
  return invalid_argument("{}: {} is no speed in {}; expected a number from {} to {}", flag, *value,
                          unit, kLeast, kMost);
}

Status check(const PlanFlags& flags) {
  if (flags.context < 0) return invalid_argument("--context: {} is less than 0", flags.context);
  ROTA_RETURN_IF_ERROR(check_speed("--bandwidth", "GB/s", flags.bandwidth_gb));
  return check_speed("--peak", "GFLOP/s", flags.peak_gflop);
}

Status check_context(const PlanFlags& flags, const ModelConfig& config) {
  if (flags.context <= config.max_position) return {};
  return invalid_argument(
      "--context: {} tokens are more than the model's max_position_embeddings, {}; give {} or less",
      flags.context, config.max_position, config.max_position);
}

Status count_weights(const ModelLocation& location, const EngineOptions& options, ModelPlan& plan) {
  plan.census = take_census(expected_tensors(plan.config));
  plan.weights_found =
      options.load_format != LoadFormat::kDummy && Checkpoint::present(location.dir);
  if (!plan.weights_found) {
    plan.weight_bytes = plan.census.bytes;
    return {};
  }
  ROTA_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                        Checkpoint::open(location.dir, {.headers_only = true}));
  ROTA_RETURN_IF_ERROR(check_tensors(plan.config, checkpoint));
  plan.weight_bytes = checkpoint.total_bytes();
  return {};
}

// What is copied is not read from the file again, so a step's weights are mapped or copied.
void count_copies(ModelPlan& plan) {
  if (plan.rank_count() == 1) {
    plan.copied_bytes = plan.engine.copied_bytes;
    plan.mapped_bytes = plan.weight_bytes - plan.engine.mapped_instead;
    return;
  }
  for (const RankPlan& rank : plan.ranks) {
    plan.copied_bytes += rank.copied_bytes;
    plan.mapped_bytes += rank.bytes() - rank.copied_bytes;
  }
}

// How many ranks this machine gets: all, or what the first host of the list has room for.
Status count_ranks_here(const PlanFlags& flags, ModelPlan& plan) {
  plan.ranks_here = plan.rank_count();
  if (flags.hostfile.empty()) return {};
  ROTA_ASSIGN_OR_RETURN(const std::vector<HostSlots> hosts, read_hostfile(flags.hostfile));
  ROTA_RETURN_IF_ERROR(check_slots(flags.hostfile, hosts, plan.rank_count()));
  plan.ranks_here = std::min(plan.rank_count(), hosts.front().slots);
  return {};
}

// The cache of the fullest rank, were this machine the first host.
void plan_cache(const EngineOptions& options, ModelPlan& plan) {
  const RankPlan& fullest = fullest_rank(plan.ranks);
  plan.kv = fullest.kv;
  MemoryProfile profile = memory_profile(plan.engine, options, plan.config, plan.weight_bytes);
  profile.spec = &plan.kv;
  if (plan.rank_count() > 1) {
    std::vector<int> here(static_cast<size_t>(plan.ranks_here));
    std::iota(here.begin(), here.end(), 0);
    share_host(plan.ranks, here, plan.parallel.shape.tp, profile);
  }
  Result<KvBudget> budget = plan_kv_budget(profile);
  if (budget.ok()) {
    plan.budget = *budget;
  } else {
    plan.no_budget = budget.status();
  }
}

MachineSpeed speed_of(const PlanFlags& flags, const EngineOptions& options,
                      const EnginePlan& engine) {
  constexpr double kGiga = 1e9;
  constexpr double kSeconds = 0.3;
  MachineSpeed speed{.bytes_per_second = flags.bandwidth_gb.value_or(0) * kGiga,
                     .flop_per_second = flags.peak_gflop.value_or(0) * kGiga};
  if (!flags.measure) return speed;
  const int cores = static_cast<int>(usable_cpus().one_per_core.size());
  const int threads = options.threads > 0 ? options.threads : cores;
  // What was given stays.
  if (speed.bytes_per_second == 0) {
    speed.bytes_per_second = measure_read_bandwidth(threads, kSeconds);
  }
  if (speed.flop_per_second == 0) {
    const bool bf16 = engine.compute == Compute::kBf16;
    speed.flop_per_second =
        measure_fma_peak(fma_kind(engine.moe.context.cpu, engine.isa, bf16), threads, kSeconds);
  }
  return speed;
}

void plan_roofline(const PlanFlags& flags, const EngineOptions& options, const RankInputs& inputs,
                   ModelPlan& plan) {
  RooflinePlan& out = plan.roofline;
  out.work = rank_work(inputs, fullest_rank(plan.ranks));
  out.context =
      flags.context > 0 ? flags.context : std::min(kUsualContext, plan.config.max_position);
  // Of a model with recurrent layers no more run at once than their states find room for.
  out.batch = plan.no_budget.ok() ? plan.budget.max_num_seqs : options.max_num_seqs;
  out.prompt_chunk = std::min(options.max_num_batched_tokens, out.context);
  out.alone = decode_cost(out.work, {.tokens = 1, .tokens_of_sequence = out.context});
  out.batched = decode_cost(out.work, {.tokens = out.batch, .tokens_of_sequence = out.context});
  out.prompt =
      prompt_cost(out.work, {.tokens = out.prompt_chunk, .tokens_of_sequence = out.context});
  out.speed = speed_of(flags, options, plan.engine);
  out.measured = flags.measure;
}

Status plan_transfer(const EngineOptions& options, ModelPlan& plan) {
  ROTA_ASSIGN_OR_RETURN(const MoePlan first,
                        plan_moe(moe_config(plan.config), options.moe, plan.engine.moe.context,
                                 plan.parallel.of_rank(0)));
  plan.transfer = transfer_size(first);
  return {};
}

Result<ModelPlan> make_plan(const PlanFlags& flags, const EngineOptions& options) {
  ModelPlan plan;
  ROTA_ASSIGN_OR_RETURN(
      const ModelLocation location,
      locate_model(options.model, {.revision = options.revision, .cache_dir = {}}));
  plan.name = location.name;
  ROTA_ASSIGN_OR_RETURN(plan.config,
                        read_model_config(location.dir, {.hf_overrides = options.hf_overrides}));
  ROTA_RETURN_IF_ERROR(check_context(flags, plan.config));
  ROTA_ASSIGN_OR_RETURN(plan.parallel, choose_parallel(options.parallel));
  ROTA_RETURN_IF_ERROR(count_weights(location, options, plan));
  ROTA_ASSIGN_OR_RETURN(plan.engine, plan_engine(options, plan.config, detect_cpu()));
  ROTA_ASSIGN_OR_RETURN(plan.engine.workspace_bytes,
                        plan_step_memory(options, plan.config, plan.engine.isa));
  const RankInputs inputs{.config = &plan.config,
                          .engine = &plan.engine,
                          .census = &plan.census,
                          .moe = options.moe,
                          .parallel = plan.parallel};
  ROTA_ASSIGN_OR_RETURN(plan.ranks, plan_ranks(inputs));
  plan.warnings = plan_warnings(inputs, plan.ranks);
  ROTA_RETURN_IF_ERROR(plan_transfer(options, plan));
  count_copies(plan);
  ROTA_RETURN_IF_ERROR(count_ranks_here(flags, plan));
  plan_cache(options, plan);
  plan_roofline(flags, options, inputs, plan);
  return plan;
}

Status show_plan(const PlanFlags& flags) {
  ROTA_RETURN_IF_ERROR(check(flags));
  ROTA_ASSIGN_OR_RETURN(EngineOptions options, flags.engine.resolve());
  options.max_num_seqs = std::min(options.max_num_seqs, options.max_num_batched_tokens);
  ROTA_ASSIGN_OR_RETURN(const ModelPlan plan, make_plan(flags, options));
  const std::string text =
      flags.json ? plan_to_json(plan).dump(2) + "\n" : draw_plan(plan, drawing_style_of_stdout());
  std::fputs(text.c_str(), stdout);
  // A plan may be for a larger machine; a cache that was asked for and holds nothing is wrong on
  // any.
  return options.kv_cache_memory_bytes > 0 ? plan.no_budget : Status();
}

}  // namespace

CommandRun add_plan(CLI::App& app) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App& command = *app.add_subcommand(
      "plan", "widths, backends, ranks, bytes and speed limits of a model, without its weights");
  flags->engine.add_to(command);
  hostfile_flag(command, flags->hostfile);
  toggle(command, "json", flags->json, "as JSON");
  const std::string group = "Roofline";
  flag(command, "--context", flags->context,
       "tokens of the sequence that is decoded or read; 0: 4096, or the model's where that is less")
      ->group(group);
  const auto speed = [&](const std::string& name, std::optional<double>& value,
                         const std::string& help) {
    check_type<double>(command.add_option(name, value, help))
        ->envname(environment_name(name))
        ->group(group);
  };
  speed("--bandwidth", flags->bandwidth_gb, "memory bandwidth of one rank in GB/s");
  speed("--peak", flags->peak_gflop, "arithmetic of one rank in GFLOP/s");
  toggle(command, "measure", flags->measure,
         "measure, on this machine, what of the two is not given")
      ->group(group);
  return [flags] { return show_plan(*flags); };
}

}  // namespace rota
