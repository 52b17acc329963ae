#include "engine/engine_options.h"

#include <array>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "engine/parallel_choice.h"
#include "engine/step_captures.h"
#include "kernels/attention.h"

namespace rota {
namespace {

// The words of each enum, in the order of its values.
template <typename Enum>
struct Words;
template <>
struct Words<DtypeChoice> {
  static constexpr std::string_view kFlag = "--dtype";
  static constexpr std::array<std::string_view, 3> kAll = {"auto", "bfloat16", "float32"};
};
template <>
struct Words<WeightsChoice> {
  static constexpr std::string_view kFlag = "--weights";
  static constexpr std::array<std::string_view, 2> kAll = {"mapped", "locked"};
};
template <>
struct Words<LoadFormat> {
  static constexpr std::string_view kFlag = "--load-format";
  static constexpr std::array<std::string_view, 2> kAll = {"auto", "dummy"};
};
template <>
struct Words<GenerationConfigChoice> {
  static constexpr std::string_view kFlag = "--generation-config";
  static constexpr std::array<std::string_view, 2> kAll = {"auto", "vllm"};
};

template <typename Enum>
Result<Enum> parse_word(std::string_view text) {
  const auto& words = Words<Enum>::kAll;
  std::string known;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == text) return static_cast<Enum>(i);
    known.append(i == 0 ? "" : ", ").append(words[i]);
  }
  return invalid_argument("{}: \"{}\" is none of {}", Words<Enum>::kFlag, text, known);
}

template <typename Enum>
std::string_view word_of(Enum value) {
  return Words<Enum>::kAll[static_cast<size_t>(value)];
}

Status at_least(std::string_view flag, int64_t value, int64_t least) {
  if (value >= least) return {};
  return invalid_argument("{}: {} is less than {}", flag, value, least);
}

// Calls visit(key, member) for every member: the one list that writing and reading follow.
template <typename Options, typename Visit>
void for_each_member(Options& options, Visit&& visit) {
  visit("model", options.model);
  visit("revision", options.revision);
  visit("hf_overrides", options.hf_overrides);
  visit("load_format", options.load_format);
  visit("generation_config", options.generation_config);
  visit("dtype", options.dtype);
  visit("weights", options.weights);
  visit("verify_weights", options.verify_weights);
  visit("threads", options.threads);
  visit("pin", options.pin);
  visit("isa", options.isa);
  visit("moe_backend", options.moe.backend);
  visit("moe_hidden_alignment", options.moe.hidden_alignment);
  visit("moe_intermediate_alignment", options.moe.intermediate_alignment);
  visit("tensor_parallel_size", options.parallel.tensor_parallel_size);
  visit("data_parallel_size", options.parallel.data_parallel_size);
  visit("enable_expert_parallel", options.parallel.enable_expert_parallel);
  visit("all2all_backend", options.parallel.all2all_backend);
  visit("expert_placement_strategy", options.parallel.expert_placement_strategy);
  visit("enable_eplb", options.parallel.enable_eplb);
  visit("num_redundant_experts", options.parallel.num_redundant_experts);
  visit("eplb_window_size", options.parallel.eplb_window_size);
  visit("eplb_step_interval", options.parallel.eplb_step_interval);
  visit("rank_timeout", options.parallel.rank_timeout);
  visit("check_collectives", options.parallel.check_collectives);
  visit("max_num_seqs", options.max_num_seqs);
  visit("max_num_batched_tokens", options.max_num_batched_tokens);
  visit("cudagraph_capture_sizes", options.cudagraph_capture_sizes);
  visit("enforce_eager", options.enforce_eager);
  visit("max_model_len", options.max_model_len);
  visit("max_waiting", options.max_waiting);
  visit("memory_utilization", options.memory_utilization);
  visit("kv_cache_memory_bytes", options.kv_cache_memory_bytes);
  visit("enable_prefix_caching", options.enable_prefix_caching);
  visit("mamba_block_size", options.mamba_block_size);
  visit("mamba_snapshot_bytes", options.mamba_snapshot_bytes);
  visit("seed", options.seed);
}

template <typename T>
bool holds(const nlohmann::json& value) {
  if constexpr (std::is_same_v<T, bool>) return value.is_boolean();
  if constexpr (std::is_same_v<T, std::string>) return value.is_string();
  if constexpr (std::is_floating_point_v<T>) return value.is_number();
  return value.is_number_integer();
}

template <typename T>
Status read_member(const nlohmann::json& value, std::string_view key, T& member) {
  if constexpr (std::is_enum_v<T>) {
    if (!value.is_string()) return invalid_argument("engine options: {} is no string", key);
    ROTA_ASSIGN_OR_RETURN(member, parse_word<T>(value.template get_ref<const std::string&>()));
  } else {
    if (!holds<T>(value)) return invalid_argument("engine options: {} has the wrong type", key);
    member = value.template get<T>();
  }
  return {};
}

}  // namespace

Result<DtypeChoice> parse_dtype_choice(std::string_view text) {
  return parse_word<DtypeChoice>(text);
}
Result<WeightsChoice> parse_weights_choice(std::string_view text) {
  return parse_word<WeightsChoice>(text);
}
Result<LoadFormat> parse_load_format(std::string_view text) { return parse_word<LoadFormat>(text); }
Result<GenerationConfigChoice> parse_generation_config_choice(std::string_view text) {
  return parse_word<GenerationConfigChoice>(text);
}
std::string_view to_string(DtypeChoice choice) { return word_of(choice); }
std::string_view to_string(WeightsChoice choice) { return word_of(choice); }
std::string_view to_string(LoadFormat format) { return word_of(format); }
std::string_view to_string(GenerationConfigChoice choice) { return word_of(choice); }

Status validate(const EngineOptions& options) {
  if (options.model.empty()) return invalid_argument("no model was named");
  ROTA_RETURN_IF_ERROR(at_least("--threads", options.threads, 0));
  ROTA_RETURN_IF_ERROR(at_least("--max-num-seqs", options.max_num_seqs, 1));
  ROTA_RETURN_IF_ERROR(at_least("--max-num-batched-tokens", options.max_num_batched_tokens, 1));
  ROTA_RETURN_IF_ERROR(at_least("--max-model-len", options.max_model_len, 0));
  ROTA_RETURN_IF_ERROR(at_least("--max-waiting", options.max_waiting, 1));
  ROTA_RETURN_IF_ERROR(at_least("--kv-cache-memory-bytes", options.kv_cache_memory_bytes, 0));
  ROTA_RETURN_IF_ERROR(at_least("--mamba-block-size", options.mamba_block_size, 0));
  ROTA_RETURN_IF_ERROR(at_least("--mamba-snapshot-bytes", options.mamba_snapshot_bytes, -1));
  if (options.mamba_block_size % kKvBlockTokens != 0) {
    return invalid_argument("--mamba-block-size: {} is no multiple of {}, the tokens of a KV page",
                            options.mamba_block_size, kKvBlockTokens);
  }
  // Beyond these a step's own threads and buffers would be more than any machine has.
  if (options.threads > 1024) {
    return invalid_argument("--threads: {} is more than 1024", options.threads);
  }
  if (options.max_num_seqs > 4096) {
    return invalid_argument("--max-num-seqs: {} is more than 4096", options.max_num_seqs);
  }
  if (options.max_num_batched_tokens > 65536) {
    return invalid_argument("--max-num-batched-tokens: {} is more than 65536",
                            options.max_num_batched_tokens);
  }
  if (!(options.memory_utilization > 0 && options.memory_utilization <= 1)) {
    return invalid_argument("--memory-utilization: {} is not in (0, 1]",
                            options.memory_utilization);
  }
  ROTA_RETURN_IF_ERROR(status_of(capture_sizes(options)));
  return status_of(choose_parallel(options.parallel));
}

nlohmann::json to_json(const EngineOptions& options) {
  nlohmann::json json = nlohmann::json::object();
  for_each_member(options, [&](const char* key, const auto& member) {
    if constexpr (std::is_enum_v<std::remove_cvref_t<decltype(member)>>) {
      json[key] = word_of(member);
    } else {
      json[key] = member;
    }
  });
  return json;
}

Result<EngineOptions> engine_options_from_json(const nlohmann::json& json) {
  if (!json.is_object()) return invalid_argument("engine options: not an object");
  EngineOptions options;
  Status status;
  size_t read = 0;
  for_each_member(options, [&](const char* key, auto& member) {
    const auto found = json.find(key);
    if (found == json.end() || !status.ok()) return;
    ++read;
    status = read_member(*found, key, member);
  });
  if (!status.ok()) return status;
  if (read != json.size()) {
    return invalid_argument(
        "engine options: {} of {} members are unknown: another build wrote them",
        json.size() - read, json.size());
  }
  return options;
}

}  // namespace rota
