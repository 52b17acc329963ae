#include "engine/parallel_choice.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace rota {
namespace {

// Transports elsewhere send packed tokens or fixed slots, whatever wires they know.
struct All2AllName {
  std::string_view name;
  Transport transport;
};
constexpr std::array<All2AllName, 15> kAll2AllNames = {{
    {"allgather_reducescatter", Transport::kAllgatherReducescatter},
    {"naive", Transport::kAllgatherReducescatter},
    {"alltoallv", Transport::kAlltoallv},
    {"deepep_high_throughput", Transport::kAlltoallv},
    {"deepep_v2", Transport::kAlltoallv},
    {"mori", Transport::kAlltoallv},
    {"mori_high_throughput", Transport::kAlltoallv},
    {"flashinfer_all2allv", Transport::kAlltoallv},
    {"flashinfer_nvlink_two_sided", Transport::kAlltoallv},
    {"flashinfer_nvlink_one_sided", Transport::kAlltoallv},
    {"low_latency", Transport::kLowLatency},
    {"deepep_low_latency", Transport::kLowLatency},
    {"mori_low_latency", Transport::kLowLatency},
    {"nixl_ep", Transport::kLowLatency},
    {"pplx", Transport::kLowLatency},
}};

Result<Transport> parse_all2all(std::string_view name) {
  if (name.empty()) return Transport::kAllgatherReducescatter;
  std::string known;
  for (const All2AllName& one : kAll2AllNames) {
    if (one.name == name) return one.transport;
    known.append(known.empty() ? "" : ", ").append(one.name);
  }
  return invalid_argument("--all2all-backend: \"{}\" is none of {}", name, known);
}

Result<ExpertPlacement> parse_placement(std::string_view word) {
  if (word == "linear") return ExpertPlacement::kLinear;
  if (word == "round_robin") return ExpertPlacement::kRoundRobin;
  return invalid_argument("--expert-placement-strategy: \"{}\" is none of linear, round_robin",
                          word);
}

Status check_size(std::string_view flag, int size) {
  if (size >= 1 && size <= kMaxRanks) return {};
  return invalid_argument("{}: {} is not from 1 to {}", flag, size, kMaxRanks);
}

Status check_balancing(const ParallelOptions& options) {
  if (!options.enable_eplb) {
    if (options.num_redundant_experts == 0) return {};
    return invalid_argument(
        "--num-redundant-experts {}: copies of experts are used with --enable-eplb alone; add it, "
        "or "
        "leave this out",
        options.num_redundant_experts);
  }
  if (!options.enable_expert_parallel) {
    return invalid_argument(
        "--enable-eplb: without --enable-expert-parallel every rank holds a part of every expert, "
        "and "
        "all have as much to do; add -ep, or leave this out");
  }
  if (options.data_parallel_size == 1) {
    return invalid_argument(
        "--enable-eplb: with --data-parallel-size 1 {}; give 2 or more, or leave this out",
        options.tensor_parallel_size == 1
            ? "there is no other rank that an expert could move to"
            : "each rank adds up the shares of its own experts, so that an answer's rounding would "
              "change when an expert moves");
  }
  if (options.num_redundant_experts < 0) {
    return invalid_argument("--num-redundant-experts: {} is less than 0",
                            options.num_redundant_experts);
  }
  if (options.eplb_step_interval < 1) {
    return invalid_argument("--eplb-step-interval: {} is less than 1 step",
                            options.eplb_step_interval);
  }
  if (options.eplb_window_size < 1 || options.eplb_window_size > options.eplb_step_interval) {
    return invalid_argument(
        "--eplb-window-size: {} steps is not from 1 to the {} of --eplb-step-interval",
        options.eplb_window_size, options.eplb_step_interval);
  }
  return {};
}

}  // namespace

MoeParallel ParallelChoice::of_rank(int rank) const {
  MoeParallel parallel{.shape = shape,
                       .transport = transport,
                       .placement = placement,
                       .experts_move = experts_move,
                       .redundant_experts = redundant_experts};
  parallel.shape.rank = rank;
  return parallel;
}

Result<ParallelChoice> choose_parallel(const ParallelOptions& options) {
  ROTA_RETURN_IF_ERROR(check_size("--tensor-parallel-size", options.tensor_parallel_size));
  ROTA_RETURN_IF_ERROR(check_size("--data-parallel-size", options.data_parallel_size));
  if (options.data_parallel_size > kMaxRanks / options.tensor_parallel_size) {
    return invalid_argument(
        "--tensor-parallel-size {} x --data-parallel-size {}: more than {} ranks",
        options.tensor_parallel_size, options.data_parallel_size, kMaxRanks);
  }
  if (!(options.rank_timeout >= kLeastRankTimeout && options.rank_timeout <= kMostRankTimeout)) {
    return invalid_argument("--rank-timeout: {} is not from {} to {} seconds", options.rank_timeout,
                            kLeastRankTimeout, kMostRankTimeout);
  }
  ROTA_RETURN_IF_ERROR(check_balancing(options));
  ParallelChoice choice;
  choice.experts_move = options.enable_eplb;
  choice.redundant_experts = options.num_redundant_experts;
  ROTA_ASSIGN_OR_RETURN(const Transport wanted, parse_all2all(options.all2all_backend));
  ROTA_ASSIGN_OR_RETURN(choice.placement, parse_placement(options.expert_placement_strategy));
  choice.shape = {.dp = options.data_parallel_size,
                  .tp = options.tensor_parallel_size,
                  .expert_parallel = options.enable_expert_parallel,
                  .rank = 0};
  const bool tokens_move = choice.shape.dp > 1;
  if (tokens_move) {
    choice.transport = choice.shape.expert_parallel ? wanted : Transport::kAllgatherReducescatter;
  }
  if (!options.all2all_backend.empty() && !(tokens_move && choice.shape.expert_parallel)) {
    choice.unused_flag = fmt::format("--all2all-backend {}", options.all2all_backend);
    choice.unused_because = tokens_move
                                ? "without --enable-expert-parallel every rank holds a part of "
                                  "every expert and gathers all tokens"
                                : "with one data-parallel rank all tokens are here already";
  }
  return choice;
}

Status check_one_rank(std::string_view command, const ParallelOptions& options) {
  ROTA_RETURN_IF_ERROR(Status(status_of(choose_parallel(options))));
  if (options.tensor_parallel_size == 1 && options.data_parallel_size == 1) return {};
  const bool tensor = options.tensor_parallel_size > 1;
  return error(StatusCode::kUnsupported,
               "{} {}: `rota {}` runs in one process; leave the flag out or give 1",
               tensor ? "--tensor-parallel-size" : "--data-parallel-size",
               tensor ? options.tensor_parallel_size : options.data_parallel_size, command);
}

}  // namespace rota
