// allgather_reducescatter: every rank gets all tokens, with their ids. Where experts are whole,
// rows go home and are summed there (rows_home.h). Where every rank holds a part of each expert,
// weights travel too: each rank sums its shares of all tokens in slot order, and those are added in
// rank order at home. Standard format, any hidden size.
#include "moe/prepare_finalize/arrived_tokens.h"
#include "moe/prepare_finalize/kinds.h"
#include "moe/prepare_finalize/rows_home.h"
#include "moe/prepare_finalize/sum_slots.h"

namespace rota {
namespace {

int64_t all_tokens(const PrepareFinalizeSizing& sizing) { return sizing.max_tokens * sizing.ranks; }

class AllGather final : public PrepareFinalize {
 public:
  static PrepareFinalizeNeeds needs(const PrepareFinalizeSizing& sizing);
  static Result<std::unique_ptr<PrepareFinalize>> make(const PrepareFinalizeSizing& sizing);

  std::string_view name() const override { return to_string(Transport::kAllgatherReducescatter); }
  ActivationFormat format() const override { return ActivationFormat::kStandard; }

  Status start_dispatch(const DispatchArgs& args) override;
  Result<ExpertsInput> finish_dispatch() override;
  Result<Reduced<float>> combine(const ExpertsOutput& experts, MatrixView<float> out) override;

 private:
  AllGather(const PrepareFinalizeSizing& sizing, ArrivedTokens arrived)
      : sizing_(sizing), wire_(wire_of(sizing)), arrived_(std::move(arrived)) {}
  static WireToken wire_of(const PrepareFinalizeSizing& sizing) {
    return {WireRow(sizing.plan->dispatch, sizing.compute), sizing.config->router.top_k,
            !sizing.experts_whole};
  }

  const PrepareFinalizeSizing sizing_;
  const WireToken wire_;
  Buffer all_;  // [tokens of all ranks, wire]
  ArrivedTokens arrived_;
  std::optional<RowsHome> home_;         // experts are whole
  std::optional<Matrix<float>> shares_;  // else: [tokens of all ranks, cut]
  std::vector<int64_t> first_token_;     // [ranks + 1]
  std::vector<int64_t> begin_;           // [ranks + 1], bytes
  std::optional<DispatchArgs> args_;     // of the pass
};

PrepareFinalizeNeeds AllGather::needs(const PrepareFinalizeSizing& sizing) {
  const int64_t all = all_tokens(sizing);
  Bytes bytes = Bytes{wire_of(sizing).bytes()} * all + ArrivedTokens::bytes(sizing, all);
  if (sizing.experts_whole) {
    bytes = bytes + RowsHome::bytes(sizing, all);
  } else {
    bytes = bytes + size_of(DType::kF32) * (all * sizing.plan->cut.padded());
  }
  return {.tokens = all, .places = 0, .workspace = bytes};
}

Result<std::unique_ptr<PrepareFinalize>> AllGather::make(const PrepareFinalizeSizing& sizing) {
  const int64_t all = all_tokens(sizing);
  ROTA_ASSIGN_OR_RETURN(ArrivedTokens arrived, ArrivedTokens::make(sizing, all));
  auto made = std::unique_ptr<AllGather>(new AllGather(sizing, std::move(arrived)));
  ROTA_ASSIGN_OR_RETURN(made->all_, Buffer::allocate(static_cast<size_t>(all * made->wire_.bytes()),
                                                     Fill::kUnspecified));
  if (sizing.experts_whole) {
    ROTA_ASSIGN_OR_RETURN(made->home_, RowsHome::make(sizing, all));
  } else {
    ROTA_ASSIGN_OR_RETURN(made->shares_, Matrix<float>::allocate(all, sizing.plan->cut));
  }
  made->first_token_.resize(static_cast<size_t>(sizing.ranks) + 1);
  made->begin_.resize(made->first_token_.size());
  return std::unique_ptr<PrepareFinalize>(std::move(made));
}

Status AllGather::start_dispatch(const DispatchArgs& args) {
  args_ = args;
  for (size_t rank = 0; rank < args.tokens_of_rank.size(); ++rank) {
    first_token_[rank + 1] = first_token_[rank] + args.tokens_of_rank[rank];
    begin_[rank + 1] = first_token_[rank + 1] * wire_.bytes();
  }
  const ReceivedPieces all{.data = all_.data(), .begin = begin_};
  const std::span<std::byte> mine = all.of(sizing_.communicator->rank());
  for_blocks(*sizing_.team, args.topk.tokens, [&](int64_t token) {
    wire_.pack({.row = args.hidden.row(token),
                .ids = args.topk.ids_of(token),
                .weights = args.topk.weights_of(token)},
               mine.data() + token * wire_.bytes());
  });
  return sizing_.communicator->all_gather(mine, all);
}

Result<ExpertsInput> AllGather::finish_dispatch() {
  arrived_.unpack(wire_, all_.data(), first_token_.back());
  return arrived_.input();
}

Result<Reduced<float>> AllGather::combine(const ExpertsOutput& experts, MatrixView<float> out) {
  check_width(experts, out);
  if (home_) {
    ROTA_RETURN_IF_ERROR(home_->bring(experts, first_token_, args_->topk));
    home_->sum(args_->topk, out);
    return loopback().reduce(Partial<float>(out));  // all of the sum is here
  }
  const MatrixView<float> shares = shares_->rows_view(first_token_.back());
  sum_slots(sizing_, arrived_.topk(), [&](int64_t slot) { return experts.row(slot); }, shares);
  return sizing_.communicator->reduce_scatter(Partial<float>(shares), args_->tokens_of_rank, out);
}

}  // namespace

PrepareFinalizeKind allgather_reducescatter_kind() {
  return {.needs = AllGather::needs, .make = AllGather::make};
}

}  // namespace rota
