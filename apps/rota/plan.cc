// rota plan MODEL: every width, choice and byte before a weight is read, from config.json and tensor headers only.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/locate.h"
#include "engine/engine_plan.h"
#include "engine/format_bytes.h"
#include "model/model.h"
#include "platform/cpu.h"
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
  EnginePlan engine;
  int64_t weight_bytes = 0;    // all tensors
  bool weights_found = false;  // counted from headers; else from config.json
  int64_t mapped_bytes = 0;    // read where they lie in the file
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

  ROTA_ASSIGN_OR_RETURN(plan.engine, plan_engine(options, plan.config, detect_cpu()));
  // What is copied is not read from the file again, so a step's weights are mapped or copied.
  plan.mapped_bytes = plan.weight_bytes - plan.engine.mapped_instead;
  const MemoryProfile profile =
      memory_profile(plan.engine, options, plan.config, plan.weight_bytes);
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
  for (const WidthStep& step : plan.engine.moe.widths.steps()) {
    widths.push_back({{"name", step.name},
                      {"logical", step.width.logical()},
                      {"padded", step.width.padded()},
                      {"action", to_string(step.action)},
                      {"reason", step.reason}});
  }
  Json refused = Json::array();
  for (const BackendRefusal& one : plan.engine.moe.choice.refused) {
    refused.push_back({{"backend", one.backend}, {"reason", one.reason}});
  }
  Json out = {{"model", plan.name},
              {"model_type", to_string(plan.config.architecture)},
              {"layers", plan.config.layers},
              {"moe_layers", plan.config.moe_layers()},
              {"experts", plan.config.experts},
              {"top_k", plan.config.top_k},
              {"backend", plan.engine.moe.choice.backend->name()},
              {"refused", std::move(refused)},
              {"prepare_finalize", to_string(plan.engine.moe.transport)},
              {"widths", std::move(widths)},
              {"weights",
               {{"bytes", plan.weight_bytes},
                {"counted_from", plan.weights_found ? "tensor headers" : "config.json"},
                {"mapped_bytes", plan.mapped_bytes},
                {"copied_bytes", plan.engine.copied_bytes}}},
              {"kv",
               {{"bytes_per_token", plan.engine.kv.bytes_per_token().count},
                {"page_bytes", plan.engine.kv.page_bytes.count},
                {"tokens_that_fit", plan.budget.tokens},
                {"cache_bytes", plan.budget.bytes},
                {"max_model_len", plan.budget.max_model_len}}}};
  if (plan.budget.slots > 0) {
    out["kv"]["state_bytes"] = plan.engine.kv.state.slot_bytes().count;
    out["kv"]["max_num_seqs"] = plan.budget.max_num_seqs;
    out["kv"]["snapshots"] = plan.budget.snapshots;
  }
  if (!plan.no_budget.ok()) out["kv"]["problem"] = plan.no_budget.message();
  return out;
}

void print(const ModelPlan& plan) {
  const ModelConfig& config = plan.config;
  const std::string with = config.moe_layers() == config.layers
                               ? "each"
                               : fmt::format("{} of them", config.moe_layers());
  fmt::print("{}: {}, {} layers, {} with {} experts of which {} serve a token\n\n", plan.name,
             to_string(config.architecture), config.layers, with, config.experts, config.top_k);
  fmt::print("Widths of a mixture layer\n");
  for (const WidthStep& step : plan.engine.moe.widths.steps()) {
    const std::string action = step.action == WidthAction::kPass
                                   ? ""
                                   : fmt::format("{}: {}", to_string(step.action), step.reason);
    fmt::print("  {:<16} {:<16} {}\n", step.name, to_string(step.width), action);
  }
  fmt::print("\nBackend           {}\n", plan.engine.moe.choice.backend->name());
  for (const BackendRefusal& one : plan.engine.moe.choice.refused)
    fmt::print("  not {:<16} {}\n", one.backend, one.reason);
  fmt::print("Prepare/finalize  {}\n", to_string(plan.engine.moe.transport));
  fmt::print("Weights           {} ({} bytes, from {})", format_bytes(plan.weight_bytes),
             plan.weight_bytes, plan.weights_found ? "tensor headers" : "config.json");
  if (plan.engine.copied_bytes > 0) {
    fmt::print("; padded copies of the experts, because of {}: {} ({} bytes)\n",
               plan.engine.copied_because, format_bytes(plan.engine.copied_bytes),
               plan.engine.copied_bytes);
  } else {
    fmt::print("; nothing is copied\n");
  }
  fmt::print("KV cache          {} bytes a token, pages of {} tokens and {} bytes\n",
             plan.engine.kv.bytes_per_token().count, kKvBlockTokens,
             plan.engine.kv.page_bytes.count);
  if (plan.no_budget.ok()) {
    fmt::print("                  {} for {} tokens; the longest sequence is {}\n",
               format_bytes(plan.budget.bytes), plan.budget.tokens, plan.budget.max_model_len);
    if (plan.budget.slots > 0)
      fmt::print("States            {}\n", describe_states(plan.engine.kv, plan.budget));
    if (!plan.budget.note.empty()) fmt::print("                  {}\n", plan.budget.note);
  } else {
    fmt::print("\nNot on this machine: {}\n", plan.no_budget.message());
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
  // A plan may be for a larger machine; a cache that was asked for and holds nothing is wrong on any.
  return options.kv_cache_memory_bytes > 0 ? plan.no_budget : Status();
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
