#include "moe/transfer_size.h"

#include <algorithm>

#include "moe/prepare_finalize/wire.h"

namespace rota {
namespace {

constexpr int64_t kNumber = sizeof(int32_t);

// What a sum over ranks costs one of them: the others' pieces to them, its own to all.
int64_t reduced(int64_t elements, int64_t ranks, int64_t rank) {
  const int64_t mine = elements / ranks + (rank < elements % ranks ? 1 : 0);
  return (elements - mine + mine * (ranks - 1)) * static_cast<int64_t>(sizeof(float));
}

class PassCount {
 public:
  PassCount(const MoePlan& plan, std::span<const TopK> ids) : plan_(plan), ids_(ids) {}

  int me() const { return plan_.parallel.shape.rank; }
  int64_t others() const { return plan_.parallel.shape.ranks() - 1; }
  int64_t my_tokens() const { return ids_[static_cast<size_t>(me())].tokens; }
  int64_t other_tokens() const {
    int64_t tokens = -my_tokens();
    for (const TopK& of_rank : ids_) tokens += of_rank.tokens;
    return tokens;
  }

  // This rank's tokens' slots that others own.
  int64_t slots_out() const {
    return slots(me(), [this](int owner) { return owner != me(); });
  }
  // Other ranks' tokens' slots that this one owns.
  int64_t slots_home() const {
    int64_t count = 0;
    for (int rank = 0; rank <= others(); ++rank) {
      if (rank != me()) count += slots(rank, [this](int owner) { return owner == me(); });
    }
    return count;
  }
  // Other ranks that own an expert of a token, over all of this rank's tokens.
  int64_t token_ranks() const {
    const TopK& mine = ids_[static_cast<size_t>(me())];
    int64_t count = 0;
    for (int64_t token = 0; token < mine.tokens; ++token) {
      for (int rank = 0; rank <= others(); ++rank) {
        const auto ids = mine.ids_of(token);
        count += rank != me() && std::any_of(ids.begin(), ids.end(), [&](int32_t id) {
                   return plan_.map.owner(id) == rank;
                 });
      }
    }
    return count;
  }

 private:
  template <typename Wanted>
  int64_t slots(int rank, Wanted&& wanted) const {
    const TopK& of_rank = ids_[static_cast<size_t>(rank)];
    return std::count_if(of_rank.ids, of_rank.ids + of_rank.tokens * of_rank.k,
                         [&](int32_t id) { return wanted(plan_.map.owner(id)); });
  }

  const MoePlan& plan_;
  std::span<const TopK> ids_;
};

}  // namespace

TransferSize transfer_size(const MoePlan& plan) {
  const MoeParallel& parallel = plan.parallel;
  const WireRow row(plan.widths.dispatch, plan.choice.backend->compute(plan.context.compute));
  const WireToken token(row, plan.config.router.top_k, !parallel.experts_whole());
  const Bytes home{WireRow::home(plan.widths.combine).bytes()};
  TransferSize size;
  switch (parallel.transport) {
    case Transport::kNoDpEp:
      size.sum = {reduced(plan.widths.cut.logical(), parallel.shape.ranks(), parallel.shape.rank)};
      break;
    case Transport::kAllgatherReducescatter:
      size = {.out = {token.bytes()}, .home = home, .pass = {}, .group = {}, .sum = {}};
      break;
    case Transport::kAlltoallv:
      size = {.out = {token.bytes()},
              .home = home,
              .pass = {(parallel.shape.ranks() - 1) * kNumber},
              .group = {},
              .sum = {}};
      break;
    case Transport::kLowLatency:
      size = {.out = {row.bytes() + kNumber},
              .home = home,
              .pass = {(plan.map.experts() - plan.map.local_count()) * kNumber},
              .group = {},
              .sum = {}};
      break;
  }
  if (parallel.shape.tp > 1 && parallel.transport != Transport::kNoDpEp) {
    size.group = size_of(DType::kF32) * plan.widths.cut.logical();
  }
  size.sum = size.sum + sent_for_shared(plan, 1);
  return size;
}

Bytes sent_in_pass(const MoePlan& plan, std::span<const TopK> ids_of_rank) {
  const MoeParallel& parallel = plan.parallel;
  const PassCount count(plan, ids_of_rank);
  const TransferSize size = transfer_size(plan);
  const Bytes fixed = size.pass + size.group * (count.my_tokens() * (parallel.shape.tp - 1));
  switch (parallel.transport) {
    case Transport::kNoDpEp:
      return {reduced(count.my_tokens() * plan.widths.cut.logical(), parallel.shape.ranks(),
                      parallel.shape.rank)};
    case Transport::kAllgatherReducescatter:
      return fixed + size.out * (count.my_tokens() * count.others()) +
             size.home * (parallel.experts_whole() ? count.slots_home() : count.other_tokens());
    case Transport::kAlltoallv:
      return fixed + size.out * count.token_ranks() + size.home * count.slots_home();
    case Transport::kLowLatency:
      break;
  }
  return fixed + size.out * count.slots_out() + size.home * count.slots_home();
}

Bytes sent_for_shared(const MoePlan& plan, int64_t tokens) {
  const ParallelShape& shape = plan.parallel.shape;
  if (!plan.widths.shared_reduce) return {};
  return {reduced(tokens * plan.widths.shared_reduce->logical(), shape.tp, shape.rank % shape.tp)};
}

}  // namespace rota
