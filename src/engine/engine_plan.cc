#include "engine/engine_plan.h"

#include <algorithm>
#include <cstdlib>

#include "checkpoint/expected_tensors.h"
#include "engine/parallel_choice.h"
#include "kernels/kernels.h"
#include "model/tensor_parallel.h"
#include "platform/memory.h"
#include "platform/thread_team.h"

namespace rota {
namespace {

// Rows of logits that a step may give to prompt_logprobs, beyond one for each running sequence.
constexpr int64_t kPromptLogprobRows = 128;

// Beyond the length that a model was made for its positions mean nothing: text would be garbage.
Status check_max_model_len(const EngineOptions& options, const ModelConfig& config) {
  if (options.max_model_len <= config.max_position) return {};
  return invalid_argument(
      "--max-model-len: {} tokens are more than the model's max_position_embeddings, {}; give {} "
      "or "
      "less, or, if the model is known to do more, --hf-overrides '{{\"max_position_embeddings\": "
      "{}}}'",
      options.max_model_len, config.max_position, config.max_position, options.max_model_len);
}

std::string reason_of_copies(const MoeOptions& options, const ExpertsBackend& backend) {
  std::string reason;
  const auto add = [&](std::string_view flag, int64_t value) {
    if (value <= 1) return;
    if (!reason.empty()) reason += " and ";
    reason += fmt::format("{} {}", flag, value);
  };
  add("--moe-hidden-alignment", options.hidden_alignment);
  add("--moe-intermediate-alignment", options.intermediate_alignment);
  return reason.empty() ? fmt::format("--moe-backend {}", backend.name()) : reason;
}

Status plan_copies(const EngineOptions& options, const ModelConfig& config, EnginePlan& plan) {
  const MoeConfig layer = moe_config(config);
  const PlanInputs unpadded{.moe = layer, .experts = plan.moe.choice.backend, .parallel = {}};
  ROTA_ASSIGN_OR_RETURN(const WidthPlan plain, plan_widths(unpadded));
  const int64_t in_file = expert_bytes(layer, plain, layer.router.experts).mapped.count;
  plan.copied_bytes = plan.moe.layer_bytes.copied.count * config.moe_layers();
  plan.mapped_instead = (in_file - plan.moe.layer_bytes.mapped.count) * config.moe_layers();
  plan.copied_because = reason_of_copies(options.moe, *plan.moe.choice.backend);
  return {};
}

}  // namespace

Result<Isa> isa_of(const EngineOptions& options, const CpuFeatures& cpu) {
  const char* environment = std::getenv("ROTA_ISA");
  const bool from_environment =
      options.isa.empty() || (environment != nullptr && options.isa == environment);
  return from_environment ? choose_isa(cpu, environment)
                          : choose_isa(cpu, options.isa.c_str(), "--isa ");
}

Compute compute_of(DtypeChoice choice, const ModelConfig& config) {
  if (choice == DtypeChoice::kAuto) {
    return config.dtype == DType::kF32 ? Compute::kFloat32 : Compute::kBf16;
  }
  return choice == DtypeChoice::kFloat32 ? Compute::kFloat32 : Compute::kBf16;
}

Result<EnginePlan> plan_engine(const EngineOptions& options, const ModelConfig& config,
                               const CpuFeatures& cpu) {
  ROTA_RETURN_IF_ERROR(check_max_model_len(options, config));
  const int tp = options.parallel.tensor_parallel_size;
  ROTA_RETURN_IF_ERROR(check_tensor_parallel(config, tp));
  EnginePlan plan;
  ROTA_ASSIGN_OR_RETURN(plan.isa, isa_of(options, cpu));
  plan.compute = compute_of(options.dtype, config);
  const BackendContext context{.cpu = cpu, .isa = plan.isa, .compute = plan.compute};
  ROTA_ASSIGN_OR_RETURN(plan.moe, plan_moe(moe_config(config), options.moe, context));
  ROTA_RETURN_IF_ERROR(plan_copies(options, config, plan));
  plan.kv = make_kv_spec(config_of_rank(config, tensor_shard(config, tp, 0)), plan.compute,
                         kernels_for(plan.isa, cpu));
  return plan;
}

ModelOptions model_options(const EngineOptions& options, const ModelConfig& config, Isa isa) {
  ModelOptions model;
  model.compute = compute_of(options.dtype, config);
  model.isa = isa;
  model.moe = options.moe;
  model.max_batch_tokens = options.max_num_batched_tokens;
  model.max_logit_rows =
      options.max_num_seqs + std::min(kPromptLogprobRows, options.max_num_batched_tokens);
  model.max_model_len = options.max_model_len > 0 ? options.max_model_len : config.max_position;
  model.verify_weights = options.verify_weights;
  return model;
}

int64_t logits_bytes(const EngineOptions& options, const ModelConfig& config) {
  return model_options(options, config, Isa::kRef).max_logit_rows * config.vocab *
         static_cast<int64_t>(sizeof(float));
}

Result<int64_t> plan_step_memory(const EngineOptions& options, const ModelConfig& config, Isa isa) {
  ThreadTeam team({.threads = options.threads, .pin = false});
  ROTA_ASSIGN_OR_RETURN(const ParallelChoice parallel, choose_parallel(options.parallel));
  ModelOptions model = model_options(options, config, isa);
  model.ranks.parallel = parallel.of_rank(0);
  ROTA_ASSIGN_OR_RETURN(const int64_t workspace, plan_workspace(config, model, team));
  return workspace + logits_bytes(options, config);
}

MemoryProfile memory_profile(const EnginePlan& plan, const EngineOptions& options,
                             const ModelConfig& config, int64_t weight_bytes) {
  MemoryProfile profile;
  profile.spec = &plan.kv;
  profile.available_bytes = memory_info().available_bytes;
  profile.weight_bytes = weight_bytes;
  profile.copied_bytes = plan.copied_bytes;
  profile.copied_because = plan.copied_because;
  profile.workspace_bytes = plan.workspace_bytes;
  profile.weights_can_be_paged =
      options.weights == WeightsChoice::kMapped && options.load_format != LoadFormat::kDummy;
  profile.memory_utilization = options.memory_utilization;
  profile.kv_cache_memory_bytes = options.kv_cache_memory_bytes;
  profile.max_num_seqs = options.max_num_seqs;
  profile.model_max_len = config.max_position;
  profile.wanted_max_len = options.max_model_len;
  profile.max_chunk_tokens = options.max_num_batched_tokens;
  profile.prefix_caching = options.enable_prefix_caching;
  profile.snapshot_interval = options.mamba_block_size;
  profile.snapshot_bytes = options.mamba_snapshot_bytes;
  return profile;
}

}  // namespace rota
