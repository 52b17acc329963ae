// For tests: the ranks that share one mixture layer, as threads of this process; each loads its own
// part, has tokens of its own, and says what came out.
//
//   RankLayers ranks(layer, {.shape = {.dp = 3, .expert_parallel = true}, .transport = ...});
//   std::vector<RankOutput> out = ranks.run({input(5), input(0), input(2)});   // of each data-parallel rank
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/loopback.h"
#include "moe/runner.h"
#include "moe/testing/synthetic_layer.h"
#include "moe/transfer_size.h"

namespace rota::testing {

struct RankLayersOptions {
  ParallelShape shape = {};  // but for the rank
  Transport transport = Transport::kNoDpEp;
  ExpertPlacement placement = ExpertPlacement::kLinear;
  bool experts_move = false;
  int64_t redundant_experts = 0;
  const KernelTable* kernels = nullptr;
  Compute compute = Compute::kFloat32;
  MoeOptions moe = {};
  int64_t max_tokens = 32;
  Bytes max_workspace = kMoeWorkspace;
  bool check_collectives = true;
};

struct RankOutput {
  std::vector<float> rows;   // of all steps
  std::vector<int32_t> ids;  // likewise
  CommTraffic traffic = {};  // of all steps, the group's too
  Bytes predicted = {};      // payload of all steps
  int64_t passes = 0;
  int64_t shared_sums = 0;  // of shared experts over the tensor-parallel group
};

// Rows of a step, of each data-parallel rank: [dp][T * H].
using StepRows = std::vector<std::vector<float>>;

class RankLayers {
 public:
  // One of the ranks, on its thread.
  class Rank;

  RankLayers(const SyntheticLayer& layer, const RankLayersOptions& options)
      : layer_(layer),
        options_(options),
        ranks_(options.shape.ranks(),
               {.timeout_seconds = 30, .check_collectives = options.check_collectives}) {}

  void each(const std::function<void(Rank&)>& body);

  // Step after step with the same runners; of each rank.
  std::vector<RankOutput> run(const std::vector<StepRows>& steps) {
    std::vector<RankOutput> outputs(static_cast<size_t>(options_.shape.ranks()));
    each([&](Rank& rank) { run_rank(rank, steps, outputs); });
    return outputs;
  }

 private:
  class Ids final : public MoeTrace {
   public:
    void routed(const TopK& topk) override {
      last.assign(topk.ids, topk.ids + topk.tokens * topk.k);
    }
    std::vector<int32_t> last;
  };

  void run_rank(Rank& rank, const std::vector<StepRows>& steps, std::vector<RankOutput>& outputs);

  std::vector<int64_t> tokens_of(const StepRows& step) const {
    std::vector<int64_t> tokens;
    for (const auto& rows : step) tokens.push_back(std::ssize(rows) / layer_.config().hidden);
    return tokens;
  }

  // Everybody's, on everybody, rank by rank. Counts as traffic, but outside of what is measured.
  std::vector<int32_t> all_ids(Communicator& all, const std::vector<int64_t>& tokens,
                               const std::vector<int32_t>& mine) const {
    std::vector<int64_t> begin{0};
    for (int rank = 0; rank < all.ranks(); ++rank) {
      begin.push_back(begin.back() + tokens[static_cast<size_t>(rank / options_.shape.tp)] *
                                         SyntheticLayer::kTopK *
                                         static_cast<int64_t>(sizeof(int32_t)));
    }
    std::vector<int32_t> ids(static_cast<size_t>(begin.back()) / sizeof(int32_t));
    const Status status =
        all.all_gather(std::as_bytes(std::span(mine)),
                       {.data = std::as_writable_bytes(std::span(ids)).data(), .begin = begin});
    ROTA_CHECK(status.ok(), status.message());
    return ids;
  }

  static Bytes predict(const MoePlan& plan, const StepPasses& step,
                       const std::vector<int32_t>& ids) {
    const ParallelShape& shape = plan.parallel.shape;
    Bytes bytes;
    for (int64_t pass = 0; pass < step.count(); ++pass) {
      std::vector<TopK> sent;
      const int32_t* of_rank = ids.data();
      for (int rank = 0; rank < shape.ranks(); ++rank) {
        const ShardRange rows = step.rows_of(pass, rank);
        constexpr int64_t k = SyntheticLayer::kTopK;
        sent.push_back({of_rank + rows.begin * k, nullptr, rows.end - rows.begin, k});
        of_rank += step.tokens_of(rank / shape.tp) * k;
      }
      bytes = bytes + sent_in_pass(plan, sent);
    }
    return bytes + sent_for_shared(plan, step.tokens_of_mine());
  }

  const SyntheticLayer& layer_;
  RankLayersOptions options_;
  LoopbackRanks ranks_;
};

class RankLayers::Rank {
 public:
  Rank(const SyntheticLayer& layer, const RankLayersOptions& options, Communicator& all)
      : all_(all),
        plan_(plan_of(layer, options, all.rank())),
        group_(value(all.split(all.rank() / plan_.parallel.shape.tp))),
        layer_(value(MoeLayer::load(layer.checkpoint(), layer.names(),
                                    {.config = &plan_.config,
                                     .plan = &plan_.widths,
                                     .map = plan_.map,
                                     .slots = plan_.slots,
                                     .compute = options.compute}))),
        runner_(value(MoeRunner::make(plan_, *options.kernels, team_, options.max_tokens,
                                      options.max_workspace, {all, *group_}))) {}

  int index() const { return all_.rank(); }
  Communicator& all() { return all_; }
  const MoePlan& plan() const { return plan_; }
  const MoeRunner& runner() const { return runner_; }
  MoeLayer& layer() { return layer_; }
  ThreadTeam& team() { return team_; }
  CommTraffic traffic() const {
    const CommTraffic all = all_.traffic(), group = group_->traffic();
    return {all.bytes + group.bytes, all.operations + group.operations};
  }

  // tokens: of each data-parallel rank; x, out [T, H].
  Status step(const std::vector<int64_t>& tokens, std::span<const float> x, std::span<float> out,
              MoeTrace* trace = nullptr) {
    const int64_t hidden = plan_.config.hidden;
    const auto rows = std::ssize(x) / hidden;
    runner_.begin_step(tokens);
    return runner_.run(layer_, MatrixView<const float>(x.data(), rows, Extent(hidden), hidden),
                       MatrixView<float>(out.data(), rows, Extent(hidden), hidden), trace);
  }

 private:
  template <typename T>
  static T value(Result<T> result) {
    ROTA_CHECK(result.ok(), result.status().message());
    return std::move(result).value();
  }
  static MoePlan plan_of(const SyntheticLayer& layer, const RankLayersOptions& options, int rank) {
    MoeParallel parallel{.shape = options.shape,
                         .transport = options.transport,
                         .placement = options.placement,
                         .experts_move = options.experts_move,
                         .redundant_experts = options.redundant_experts};
    parallel.shape.rank = rank;
    return value(plan_moe(
        layer.config(), options.moe,
        {.cpu = detect_cpu(), .isa = options.kernels->isa, .compute = options.compute}, parallel));
  }

  Communicator& all_;
  const MoePlan plan_;
  std::unique_ptr<Communicator> group_;
  MoeLayer layer_;
  ThreadTeam team_{{.threads = 1, .pin = false}};
  MoeRunner runner_;
};

inline void RankLayers::each(const std::function<void(Rank&)>& body) {
  ranks_.run([&](Communicator& all) {
    Rank rank(layer_, options_, all);
    body(rank);
    ROTA_CHECK(all.barrier().ok(), "windows are let go together");
  });
}

inline void RankLayers::run_rank(Rank& rank, const std::vector<StepRows>& steps,
                                 std::vector<RankOutput>& outputs) {
  const ParallelShape& shape = rank.plan().parallel.shape;
  RankOutput& out = outputs[static_cast<size_t>(rank.index())];
  StepPasses passes(shape, rank.plan().parallel.transport, rank.runner().tokens_a_pass());
  for (const StepRows& step : steps) {
    const std::vector<int64_t> tokens = tokens_of(step);
    const std::vector<float>& rows = step[static_cast<size_t>(shape.rank / shape.tp)];
    std::vector<float> sums(rows.size(), NAN);
    Ids ids;
    const CommTraffic before = rank.traffic();
    const Status status = rank.step(tokens, rows, sums, &ids);
    ROTA_CHECK(status.ok(), status.message());
    const CommTraffic after = rank.traffic();
    out.traffic.bytes += after.bytes - before.bytes;
    out.traffic.operations += after.operations - before.operations;
    out.rows.insert(out.rows.end(), sums.begin(), sums.end());
    out.ids.insert(out.ids.end(), ids.last.begin(), ids.last.end());
    passes.begin_step(tokens);
    out.passes += passes.count();
    out.shared_sums += rank.plan().widths.shared_reduce && !rows.empty() ? 1 : 0;
    out.predicted =
        out.predicted + predict(rank.plan(), passes, all_ids(rank.all(), tokens, ids.last));
  }
}

}  // namespace rota::testing
