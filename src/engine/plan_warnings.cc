#include "engine/plan_warnings.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "engine/format_bytes.h"

namespace rota {
namespace {

double percent(int64_t part, int64_t whole) {
  return 100 * static_cast<double>(part) / static_cast<double>(whole);
}

template <typename Member>
int64_t sum_of(std::span<const RankPlan> ranks, Member member) {
  return std::accumulate(
      ranks.begin(), ranks.end(), int64_t{0},
      [member](int64_t sum, const RankPlan& rank) { return sum + rank.*member; });
}

class Warnings {
 public:
  Warnings(const RankInputs& inputs, std::span<const RankPlan> ranks)
      : in_(inputs),
        ranks_(ranks),
        moe_(inputs.engine->moe.config),
        shape_(inputs.parallel.shape) {}

  std::vector<PlanWarning> collect() && {
    rounded_weights();
    rounded_rows();
    empty_ranks();
    uneven_experts();
    block_boundaries();
    attention_heads();
    unused_flag();
    return std::move(out_);
  }

 private:
  // vLLM #56359: 384 rounded to 512, a third more memory.
  void rounded_weights() {
    const int64_t padding = sum_of(ranks_, &RankPlan::padding_bytes);
    if (padding == 0) return;
    const int64_t all = sum_of(ranks_, &RankPlan::expert_bytes);
    const WidthPlan& widths = ranks_.front().widths;
    const bool hidden = widths.experts_in.is_padded() || widths.experts_out.is_padded();
    const bool intermediate = widths.intermediate && widths.intermediate->is_padded();
    std::string where;
    if (hidden) where = fmt::format("hidden {}", to_string(widths.experts_in));
    if (intermediate) {
      where += fmt::format("{}intermediate {}", where.empty() ? "" : ", ",
                           to_string(*widths.intermediate));
    }
    const bool by_flag = (hidden && widths.hidden_asker.who.starts_with("--")) ||
                         (intermediate && widths.intermediate_asker.who.starts_with("--"));
    const ExpertsBackend& backend = *in_.engine->moe.choice.backend;
    const ExpertsAlignment needs = backend.alignment(moe_);
    out_.push_back(
        {.kind = "rounded_weights",
         .what = fmt::format("{}: {:.1f} % of the experts' memory is padding, {} of {}, and {} are "
                             "copied out of the file for it",
                             where, percent(padding, all), format_bytes(padding), format_bytes(all),
                             format_bytes(sum_of(ranks_, &RankPlan::copied_bytes))),
         .advice = by_flag
                       ? fmt::format("leave {} out, or lower it: {} needs multiples of {} "
                                     "(hidden) and {} (intermediate)",
                                     flags_that_pad(widths, hidden, intermediate), backend.name(),
                                     needs.hidden, needs.intermediate)
                       : fmt::format("{} needs it; another --moe-backend may not", backend.name()),
         .ranks = {}});
  }

  static std::string flags_that_pad(const WidthPlan& widths, bool hidden, bool intermediate) {
    std::string flags;
    if (hidden && widths.hidden_asker.who.starts_with("--")) flags = widths.hidden_asker.who;
    if (intermediate && widths.intermediate_asker.who.starts_with("--")) {
      flags += (flags.empty() ? "" : " and ") + widths.intermediate_asker.who;
    }
    return flags;
  }

  void rounded_rows() {
    const Extent row = ranks_.front().widths.dispatch;
    if (!row.is_padded()) return;
    const Result<WidthPlan> packed = widths_with(Transport::kAlltoallv);
    const bool packed_is_less = packed.ok() && packed->dispatch.padded() < row.padded();
    out_.push_back(
        {.kind = "rounded_rows",
         .what = fmt::format("{} carries rows of {} elements for {}: {:.1f} % of what it sends is "
                             "padding",
                             to_string(in_.parallel.transport), row.padded(), row.logical(),
                             percent(row.padded() - row.logical(), row.padded())),
         .advice = packed_is_less
                       ? "--all2all-backend alltoallv rounds less, allgather_reducescatter nothing"
                       : "--all2all-backend allgather_reducescatter rounds nothing",
         .ranks = {}});
  }

  Result<WidthPlan> widths_with(Transport transport) const {
    return plan_widths({.moe = moe_,
                        .experts = in_.engine->moe.choice.backend,
                        .transport = transport,
                        .parallel = shape_,
                        .hidden_alignment = in_.moe.hidden_alignment,
                        .intermediate_alignment = in_.moe.intermediate_alignment});
  }

  void empty_ranks() {
    std::vector<int> empty;
    for (const RankPlan& rank : ranks_) {
      if (!rank.holds_experts()) empty.push_back(rank.rank);
    }
    if (empty.empty()) return;
    const std::string who = list_ranks(empty);
    const std::string subject =
        empty.size() == 1
            ? fmt::format("rank {} of {} holds no experts and only waits", who, shape_.ranks())
            : fmt::format("ranks {} of {} hold no experts and only wait", who, shape_.ranks());
    out_.push_back(
        {.kind = "empty_rank",
         .what = fmt::format("{} for the others: {}", subject, why_empty()),
         .advice = fmt::format(
             "{} ranks do the same work{}", ranks_.size() - empty.size(),
             shape_.expert_parallel ? "" : "; --enable-expert-parallel deals whole experts"),
         .ranks = std::move(empty)});
  }

  std::string why_empty() const {
    if (shape_.expert_parallel) {
      return fmt::format("there are {} experts", moe_.router.experts);
    }
    return fmt::format("the experts' intermediate width {} is {} blocks of {}, {} to a rank",
                       moe_.intermediate, blocks(), moe_.shard_block(),
                       (blocks() + shape_.ranks() - 1) / shape_.ranks());
  }

  void uneven_experts() {
    const int64_t redundant = in_.parallel.redundant_experts;
    const int64_t experts = moe_.router.experts + redundant;
    const int64_t over = experts % shape_.ranks();
    if (!shape_.expert_parallel || over == 0 || experts < shape_.ranks()) return;
    const int64_t fewer = experts / shape_.ranks();
    out_.push_back(
        {.kind = "uneven_experts",
         .what = fmt::format("{} experts{} over {} ranks: the first {} hold {}, the others {}; all "
                             "wait for the fullest",
                             experts,
                             redundant > 0 ? fmt::format(", {} of them redundant,", redundant) : "",
                             shape_.ranks(), over, fewer + 1, fewer),
         .advice = fmt::format("{} ranks would hold {} each", nearest_divisor(experts),
                               experts / nearest_divisor(experts)),
         .ranks = {}});
  }

  // The largest number of ranks, no more than these, that divides `count`.
  int64_t nearest_divisor(int64_t count) const {
    int64_t ranks = shape_.ranks();
    while (count % ranks != 0) --ranks;
    return ranks;
  }

  // vLLM #43865, #55649: an equal cut through a block gives later ranks the wrong rows.
  void block_boundaries() {
    const int64_t block = moe_.shard_block();
    const int64_t shards = shape_.shards();
    if (block == 1 || shards == 1 || blocks() % shards == 0) return;
    const double even = static_cast<double>(moe_.intermediate) / static_cast<double>(shards);
    std::vector<int> shorter;
    const int64_t most = ranks_.front().intermediate.end - ranks_.front().intermediate.begin;
    for (const RankPlan& rank : ranks_) {
      if (rank.intermediate.end - rank.intermediate.begin < most) shorter.push_back(rank.rank);
    }
    out_.push_back(
        {.kind = "cut_block",
         .what = fmt::format("intermediate {} / {} = {:g} would cut a quantisation block of {}: "
                             "cut at whole blocks instead, {} a rank and less on {}; the fullest "
                             "does {:.1f} % more than an even share",
                             moe_.intermediate, shards, even, block, most, list_ranks(shorter),
                             100 * (static_cast<double>(most) / even - 1)),
         .advice = fmt::format("{} ranks divide its {} blocks evenly; --enable-expert-parallel "
                               "keeps experts whole",
                               nearest_divisor(blocks()), blocks()),
         .ranks = std::move(shorter)});
  }
  int64_t blocks() const {
    return round_up(moe_.intermediate, moe_.shard_block()) / moe_.shard_block();
  }

  void attention_heads() {
    const ModelConfig& config = *in_.config;
    const bool groups_divide = shape_.tp > config.kv_heads || config.kv_heads % shape_.tp == 0;
    if (config.heads % shape_.tp != 0 || !groups_divide) {
      out_.push_back({.kind = "uneven_heads",
                      .what = fmt::format(
                          "{} attention heads (of {} KV heads) do not divide by {} tensor-parallel "
                          "ranks: the fullest holds {}",
                          config.heads, config.kv_heads, shape_.tp, ranks_.front().query_heads),
                      .advice = "give a --tensor-parallel-size that divides them; "
                                "--data-parallel-size cuts no heads",
                      .ranks = {}});
    }
    if (shape_.tp > config.kv_heads) {
      out_.push_back({.kind = "repeated_kv_heads",
                      .what = fmt::format("{} KV heads for {} tensor-parallel ranks: each is kept "
                                          "by several, the cache of a rank shrinks no further",
                                          config.kv_heads, shape_.tp),
                      .advice = fmt::format("--tensor-parallel-size {} and more "
                                            "--data-parallel-size",
                                            config.kv_heads),
                      .ranks = {}});
    }
  }

  void unused_flag() {
    const ParallelChoice& parallel = in_.parallel;
    if (parallel.unused_flag.empty()) return;
    out_.push_back(
        {.kind = "unused_flag",
         .what = fmt::format("{} does nothing: {}", parallel.unused_flag, parallel.unused_because),
         .advice = "leave it out",
         .ranks = {}});
  }

  const RankInputs& in_;
  std::span<const RankPlan> ranks_;
  const MoeConfig& moe_;
  const ParallelShape& shape_;
  std::vector<PlanWarning> out_;
};

}  // namespace

std::vector<PlanWarning> plan_warnings(const RankInputs& inputs, std::span<const RankPlan> ranks) {
  return Warnings(inputs, ranks).collect();
}

std::string list_ranks(std::span<const int> ranks) {
  std::string out;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    out += fmt::format("{}{}", out.empty() ? "" : ", ", ranks[i]);
    if (last > i) out += fmt::format("-{}", ranks[last]);
    i = last + 1;
  }
  return out;
}

}  // namespace rota
