// Every width of a mixture layer, and every point where a row is padded or cut, decided once (R3).
// The forward pass follows the plan and decides nothing; `rota plan` prints it.
//
//   ROTA_ASSIGN_OR_RETURN(WidthPlan plan, plan_widths({.moe = config, .experts = backend}));
//   for (const WidthStep& step : plan.steps()) print(step.name, step.width, step.action);
// In words: the router and the shared experts see the full unpadded row (R7); the experts' output
// width is asked of the experts (R4); cutting comes before reducing, before the way back from the
// latent width and before the shared experts are added, whether or not any of these exist.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "moe/config.h"
#include "tensor/extent.h"

namespace rota {

class ExpertsBackend;

// How tokens reach the ranks of their experts: the prepare/finalize kind.
enum class Transport { kNoDpEp, kAllgatherReducescatter, kAlltoallv, kLowLatency };
std::string_view to_string(Transport transport);  // "no_dp_ep"

// Without expert_parallel the experts are cut along the intermediate width over dp * tp ranks; with
// it an expert is whole and the experts are dealt over dp * tp ranks.
struct ParallelShape {
  int dp = 1;
  int tp = 1;
  bool expert_parallel = false;
  int rank = 0;  // in [0, dp * tp)
  int ranks() const { return dp * tp; }
  int shards() const { return expert_parallel ? 1 : ranks(); }
};

struct PlanInputs {
  MoeConfig moe;
  const ExpertsBackend* experts = nullptr;
  Transport transport = Transport::kNoDpEp;
  ParallelShape parallel = {};
  int64_t hidden_alignment = 0;        // raises the backend's; 0: does not
  int64_t intermediate_alignment = 0;  // likewise
};

// [begin, end) of something that is cut over ranks.
struct ShardRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// Part `index` of `size` elements cut in whole blocks over `parts`. The last parts may be short or
// empty. Offsets come from logical sizes alone (R5).
ShardRange shard_range(int64_t size, int64_t block, int parts, int index);

enum class WidthAction { kPass, kPad, kCut };
std::string_view to_string(WidthAction action);

struct WidthStep {
  std::string_view name;  // "experts_in"
  Extent width;
  WidthAction action = WidthAction::kPass;
  std::string reason;  // why it is padded or cut; empty where nothing happens
  // Of a padded step, who asked for it and what ends it, so that every pad has its cut; else empty.
  std::string padded_by;    // "--moe-hidden-alignment", "cpu_mxfp4_bf16", "low_latency"
  std::string_view cut_by;  // "gather", "gate_up", "down", "combine", "cut"
};

struct WidthPlan {
  Extent router_in{1};
  std::optional<Extent> latent_in;     // output of the projection into the latent width
  Extent dispatch{1};                  // a token's row on its way to the experts
  Extent experts_in{1};                // K of gate and up
  std::optional<Extent> intermediate;  // N of one of gate and up, K of down; nothing: empty shard
  int64_t intermediate_begin = 0;      // first logical row of this rank's shard
  Extent experts_out{1};               // N of down
  Extent combine{1};                   // a token's row on its way back
  Extent cut{1};                       // what is left of it: no padding from here on
  std::optional<Extent> reduce;        // the routed sum, where it is owed over ranks
  std::optional<Extent> latent_out;    // output of the projection out of the latent width
  std::optional<Extent> shared_in;     // input of the shared experts
  // This rank's part of their inside, cut over the tensor-parallel group in whole quantisation
  // blocks; may be empty.
  ShardRange shared_inside;
  std::optional<Extent> shared_reduce;  // their sum, where it is owed over the group
  std::optional<Extent> shared_add;     // where their output is added
  Extent final{1};

  // Who asks for a padded width, and in what words.
  struct Asker {
    std::string who;
    std::string reason;
  };
  bool gated = true;
  Asker hidden_asker;
  Asker intermediate_asker;
  Asker transport_asker;

  // In the order in which a row meets them.
  std::vector<WidthStep> steps() const;
};

// What a padding ends with: in words, for people. `step.cut_by` as above.
std::string_view describe_cut(std::string_view cut_by);

// Pure. Fails where a transport cannot carry the width, or does not fit the parallel shape.
Result<WidthPlan> plan_widths(const PlanInputs& inputs);

}  // namespace rota
