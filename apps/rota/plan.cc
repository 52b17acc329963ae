// rota plan MODEL: every width, choice and byte before a weight is read, from config.json and tensor headers only.
#include "moe/plan.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/locate.h"
#include "engine/memory_profile.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "platform/cpu.h"
#include "platform/memory.h"
#include "rota/command.h"
#include "rota/flags.h"

namespace rota {
namespace {

using Json = nlohmann::ordered_json;

struct PlanFlags {
  EngineFlags engine;
  bool json = false;
};

// What is known of a model without its weights.
struct ModelPlan {
  std::string name;
  ModelConfig config;
  MoePlan moe;
  KvSpec kv;
  int64_t weight_bytes = 0;    // all tensors
  bool weights_found = false;  // counted from headers; else from config.json
  int64_t mapped_bytes = 0;    // read where they lie in the file
  int64_t copied_bytes = 0;    // padded copies of expert weights
  KvBudget budget;
  Status no_budget;  // why no KV cache would fit
};

int64_t bytes_of(std::span<const TensorSpec> specs) {
  int64_t sum = 0;
  for (const TensorSpec& spec : specs) {
    int64_t count = size_of(spec.dtype).count;
    for (const int64_t side : spec.shape) count *= side;
    sum += count;
  }
  return sum;
}

Status count_weights(const ModelLocation& location, ModelPlan& plan) {
  plan.weights_found = Checkpoint::present(location.dir);
  if (!plan.weights_found) {
    plan.weight_bytes = bytes_of(expected_tensors(plan.config));
    return {};
  }
  ROTA_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                        Checkpoint::open(location.dir, {.headers_only = true}));
  ROTA_RETURN_IF_ERROR(check_tensors(plan.config, checkpoint));
  plan.weight_bytes = checkpoint.total_bytes();
  return {};
}

Result<ModelPlan> make_plan(const EngineOptions& options) {
  ModelPlan plan;
  ROTA_ASSIGN_OR_RETURN(
      const ModelLocation location,
      locate_model(options.model, {.revision = options.revision, .cache_dir = {}}));
  plan.name = location.name;
  ROTA_ASSIGN_OR_RETURN(plan.config,
                        read_model_config(location.dir, {.hf_overrides = options.hf_overrides}));
  ROTA_RETURN_IF_ERROR(count_weights(location, plan));

  BackendContext context;
  context.cpu = detect_cpu();
  ROTA_ASSIGN_OR_RETURN(
      context.isa,
      choose_isa(context.cpu, options.isa.empty() ? std::getenv("ROTA_ISA") : options.isa.c_str()));
  context.compute = options.dtype == DtypeChoice::kFloat32 ? Compute::kFloat32 : Compute::kBf16;
  ROTA_ASSIGN_OR_RETURN(plan.moe, plan_moe(moe_config(plan.config), options.moe, context));
  // What is copied is not read from the file again, so a step's weights are mapped or copied.
  const MoeConfig layer = moe_config(plan.config);
  const PlanInputs unpadded{.moe = layer, .experts = plan.moe.choice.backend, .parallel = {}};
  ROTA_ASSIGN_OR_RETURN(const WidthPlan plain, plan_widths(unpadded));
  const int64_t experts_in_file = expert_bytes(layer, plain, layer.router.experts).mapped.count;
  plan.copied_bytes = plan.moe.layer_bytes.copied.count * plan.config.layers;
  plan.mapped_bytes = plan.weight_bytes -
                      (experts_in_file - plan.moe.layer_bytes.mapped.count) * plan.config.layers;

  const KernelTable& kernels = kernels_for(context.isa, context.cpu);
  plan.kv = make_kv_spec(plan.config, context.compute, kernels);
  MemoryProfile profile;
  profile.spec = &plan.kv;
  profile.available_bytes = memory_info().available_bytes;
  profile.weight_bytes = plan.weight_bytes + plan.copied_bytes;
  profile.weights_can_be_paged = options.weights == WeightsChoice::kMapped;
  profile.memory_utilization = options.memory_utilization;
  profile.kv_cache_memory_bytes = options.kv_cache_memory_bytes;
  profile.max_num_seqs = options.max_num_seqs;
  profile.model_max_len = plan.config.max_position;
  profile.wanted_max_len = options.max_model_len;
  profile.max_chunk_tokens = options.max_num_batched_tokens;
  Result<KvBudget> budget = plan_kv_budget(profile);
  if (budget.ok()) {
    plan.budget = *budget;
  } else {
    plan.no_budget = budget.status();
  }
  return plan;
}

Json to_json(const ModelPlan& plan) {
  Json widths = Json::array();
  for (const WidthStep& step : plan.moe.widths.steps()) {
    widths.push_back({{"name", step.name},
                      {"logical", step.width.logical()},
                      {"padded", step.width.padded()},
                      {"action", to_string(step.action)},
                      {"reason", step.reason}});
  }
  Json refused = Json::array();
  for (const BackendRefusal& one : plan.moe.choice.refused) {
    refused.push_back({{"backend", one.backend}, {"reason", one.reason}});
  }
  Json out = {{"model", plan.name},
              {"model_type", to_string(plan.config.architecture)},
              {"layers", plan.config.layers},
              {"experts", plan.config.experts},
              {"top_k", plan.config.top_k},
              {"backend", plan.moe.choice.backend->name()},
              {"refused", std::move(refused)},
              {"prepare_finalize", to_string(plan.moe.transport)},
              {"widths", std::move(widths)},
              {"weights",
               {{"bytes", plan.weight_bytes},
                {"counted_from", plan.weights_found ? "tensor headers" : "config.json"},
                {"mapped_bytes", plan.mapped_bytes},
                {"copied_bytes", plan.copied_bytes}}},
              {"kv",
               {{"bytes_per_token", plan.kv.bytes_per_token().count},
                {"page_bytes", plan.kv.page_bytes.count},
                {"tokens_that_fit", plan.budget.tokens},
                {"cache_bytes", plan.budget.bytes},
                {"max_model_len", plan.budget.max_model_len}}}};
  if (!plan.no_budget.ok()) out["kv"]["problem"] = plan.no_budget.message();
  return out;
}

std::string gigabytes(int64_t bytes) {
  return fmt::format("{:.2f} GB", static_cast<double>(bytes) * 1e-9);
}

void print(const ModelPlan& plan) {
  const ModelConfig& config = plan.config;
  fmt::print("{}: {}, {} layers, each with {} experts of which {} serve a token\n\n", plan.name,
             to_string(config.architecture), config.layers, config.experts, config.top_k);
  fmt::print("Widths of a mixture layer\n");
  for (const WidthStep& step : plan.moe.widths.steps()) {
    const std::string action = step.action == WidthAction::kPass
                                   ? ""
                                   : fmt::format("{}: {}", to_string(step.action), step.reason);
    fmt::print("  {:<16} {:<16} {}\n", step.name, to_string(step.width), action);
  }
  fmt::print("\nBackend           {}\n", plan.moe.choice.backend->name());
  for (const BackendRefusal& one : plan.moe.choice.refused)
    fmt::print("  not {:<16} {}\n", one.backend, one.reason);
  fmt::print("Prepare/finalize  {}\n", to_string(plan.moe.transport));
  fmt::print("Weights           {} ({} bytes, from {})", gigabytes(plan.weight_bytes),
             plan.weight_bytes, plan.weights_found ? "tensor headers" : "config.json");
  if (plan.copied_bytes > 0) {
    fmt::print("; padded copies of the experts: {} ({} bytes)\n", gigabytes(plan.copied_bytes),
               plan.copied_bytes);
  } else {
    fmt::print("; nothing is copied\n");
  }
  fmt::print("KV cache          {} bytes a token, pages of {} tokens and {} bytes\n",
             plan.kv.bytes_per_token().count, kKvBlockTokens, plan.kv.page_bytes.count);
  if (!plan.no_budget.ok()) {
    fmt::print("                  {}\n", plan.no_budget.message());
  } else {
    fmt::print("                  {} for {} tokens; the longest sequence is {}\n",
               gigabytes(plan.budget.bytes), plan.budget.tokens, plan.budget.max_model_len);
    if (!plan.budget.note.empty()) fmt::print("                  {}\n", plan.budget.note);
  }
}

Status show_plan(const PlanFlags& flags) {
  ROTA_ASSIGN_OR_RETURN(const EngineOptions options, flags.engine.resolve());
  ROTA_ASSIGN_OR_RETURN(const ModelPlan plan, make_plan(options));
  if (flags.json) {
    fmt::print("{}\n", to_json(plan).dump(2));
  } else {
    print(plan);
  }
  return {};
}

}  // namespace

CommandRun add_plan(CLI::App& app) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App& command = *app.add_subcommand(
      "plan", "widths, backends and bytes of a model, without reading its weights");
  flags->engine.add_to(command);
  toggle(command, "json", flags->json, "as JSON");
  return [flags] { return show_plan(*flags); };
}

}  // namespace rota
