// alltoallv: a token goes to each rank that owns one of its experts, once, with the ids of those;
// -1 in the other slots. How many come from whom is told first, then tokens travel. Rows go home
// and are summed there (rows_home.h). Standard format; hidden sizes are rounded to 512 bytes of
// BF16.
#include <algorithm>

#include "moe/prepare_finalize/arrived_tokens.h"
#include "moe/prepare_finalize/kinds.h"
#include "moe/prepare_finalize/rows_home.h"
#include "moe/prepare_finalize/sum_slots.h"

namespace rota {
namespace {

constexpr int32_t kElsewhere = -1;

// Each rank's tokens may all come here, each once.
int64_t max_arrived(const PrepareFinalizeSizing& sizing) {
  return sizing.max_tokens * sizing.ranks;
}
int64_t max_sent(const PrepareFinalizeSizing& sizing) {
  return sizing.max_tokens * std::min<int64_t>(sizing.ranks, sizing.config->router.top_k);
}

class AllToAllV final : public PrepareFinalize {
 public:
  static PrepareFinalizeNeeds needs(const PrepareFinalizeSizing& sizing);
  static Result<std::unique_ptr<PrepareFinalize>> make(const PrepareFinalizeSizing& sizing);

  std::string_view name() const override { return to_string(Transport::kAlltoallv); }
  ActivationFormat format() const override { return ActivationFormat::kStandard; }

  Status start_dispatch(const DispatchArgs& args) override;
  Result<ExpertsInput> finish_dispatch() override;
  Result<Reduced<float>> combine(const ExpertsOutput& experts, MatrixView<float> out) override;

 private:
  // A token on its way to one rank.
  struct Sent {
    int64_t token = 0;
    int rank = 0;
  };
  AllToAllV(const PrepareFinalizeSizing& sizing, ArrivedTokens arrived, RowsHome home);
  static WireToken wire_of(const PrepareFinalizeSizing& sizing) {
    return {WireRow(sizing.plan->dispatch, sizing.compute), sizing.config->router.top_k, false};
  }
  // Parts of start_dispatch(), in order.
  void choose(const TopK& topk);
  Status tell_counts();
  void pack(const DispatchArgs& args);

  template <typename Fn>
  void for_each_sent(const TopK& topk, Fn&& fn) const;

  const PrepareFinalizeSizing sizing_;
  const WireToken wire_;
  ArrivedTokens arrived_;
  RowsHome home_;
  Buffer send_;             // [tokens sent, wire]
  Buffer received_;         // [tokens that came, wire]
  std::vector<Sent> sent_;  // rank by rank
  int64_t sent_count_ = 0;
  std::vector<int64_t> next_;           // [ranks]: where in sent_
  std::vector<int32_t> counts_;         // [ranks]: tokens to each
  std::vector<int32_t> came_;           // [ranks]: tokens from each
  std::vector<int64_t> count_begin_;    // [ranks + 1], bytes of the two above
  std::vector<int64_t> send_begin_;     // [ranks + 1], bytes
  std::vector<int64_t> receive_begin_;  // [ranks + 1], bytes
  std::vector<int64_t> first_token_;    // [ranks + 1] of those that came
  std::optional<DispatchArgs> args_;    // of the pass
};

AllToAllV::AllToAllV(const PrepareFinalizeSizing& sizing, ArrivedTokens arrived, RowsHome home)
    : sizing_(sizing),
      wire_(wire_of(sizing)),
      arrived_(std::move(arrived)),
      home_(std::move(home)),
      sent_(static_cast<size_t>(max_sent(sizing))),
      next_(static_cast<size_t>(sizing.ranks)),
      counts_(next_.size()),
      came_(counts_.size()),
      count_begin_(counts_.size() + 1),
      send_begin_(counts_.size() + 1),
      receive_begin_(counts_.size() + 1),
      first_token_(counts_.size() + 1) {
  for (size_t rank = 0; rank < count_begin_.size(); ++rank) {
    count_begin_[rank] = static_cast<int64_t>(rank * sizeof(int32_t));
  }
}

PrepareFinalizeNeeds AllToAllV::needs(const PrepareFinalizeSizing& sizing) {
  const int64_t arrived = max_arrived(sizing);
  return {.tokens = arrived,
          .places = 0,
          .workspace = Bytes{wire_of(sizing).bytes()} * (arrived + max_sent(sizing)) +
                       ArrivedTokens::bytes(sizing, arrived) + RowsHome::bytes(sizing, arrived)};
}

Result<std::unique_ptr<PrepareFinalize>> AllToAllV::make(const PrepareFinalizeSizing& sizing) {
  ROTA_ASSIGN_OR_RETURN(ArrivedTokens arrived, ArrivedTokens::make(sizing, max_arrived(sizing)));
  ROTA_ASSIGN_OR_RETURN(RowsHome home, RowsHome::make(sizing, max_arrived(sizing)));
  auto made =
      std::unique_ptr<AllToAllV>(new AllToAllV(sizing, std::move(arrived), std::move(home)));
  const auto bytes = [&](int64_t tokens) {
    return static_cast<size_t>(tokens * made->wire_.bytes());
  };
  ROTA_ASSIGN_OR_RETURN(made->send_, Buffer::allocate(bytes(max_sent(sizing)), Fill::kUnspecified));
  ROTA_ASSIGN_OR_RETURN(made->received_,
                        Buffer::allocate(bytes(max_arrived(sizing)), Fill::kUnspecified));
  return std::unique_ptr<PrepareFinalize>(std::move(made));
}

Status AllToAllV::start_dispatch(const DispatchArgs& args) {
  args_ = args;
  choose(args.topk);
  ROTA_RETURN_IF_ERROR(tell_counts());
  pack(args);
  return sizing_.communicator->start_exchange({.data = send_.data(), .begin = send_begin_},
                                              {.data = received_.data(), .begin = receive_begin_});
}

// fn(token, rank) for each rank that a token goes to, tokens in order.
template <typename Fn>
void AllToAllV::for_each_sent(const TopK& topk, Fn&& fn) const {
  for (int64_t token = 0; token < topk.tokens; ++token) {
    const std::span<const int32_t> ids = topk.ids_of(token);
    for (size_t s = 0; s < ids.size(); ++s) {
      const int rank = sizing_.map.owner(ids[s]);
      const auto same = [&](int32_t id) { return sizing_.map.owner(id) == rank; };
      if (std::none_of(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(s), same)) {
        fn(token, rank);
      }
    }
  }
}

void AllToAllV::choose(const TopK& topk) {
  std::fill(counts_.begin(), counts_.end(), 0);
  for_each_sent(topk, [&](int64_t, int rank) { ++counts_[static_cast<size_t>(rank)]; });
  sent_count_ = 0;
  for (size_t rank = 0; rank < counts_.size(); ++rank) {
    next_[rank] = sent_count_;
    sent_count_ += counts_[rank];
    send_begin_[rank + 1] = sent_count_ * wire_.bytes();
  }
  for_each_sent(topk, [&](int64_t token, int rank) {
    const int64_t at = next_[static_cast<size_t>(rank)]++;
    sent_[static_cast<size_t>(at)] = {.token = token, .rank = rank};
  });
}

Status AllToAllV::tell_counts() {
  ROTA_RETURN_IF_ERROR(sizing_.communicator->start_exchange(
      {.data = std::as_bytes(std::span(counts_)).data(), .begin = count_begin_},
      {.data = std::as_writable_bytes(std::span(came_)).data(), .begin = count_begin_}));
  ROTA_RETURN_IF_ERROR(sizing_.communicator->finish_exchange());
  for (size_t rank = 0; rank < came_.size(); ++rank) {
    if (came_[rank] < 0 || came_[rank] > args_->tokens_of_rank[rank]) {
      return error(StatusCode::kInternal,
                   "alltoallv: rank {} sends {} tokens, it has {} in this pass", rank, came_[rank],
                   args_->tokens_of_rank[rank]);
    }
    first_token_[rank + 1] = first_token_[rank] + came_[rank];
    receive_begin_[rank + 1] = first_token_[rank + 1] * wire_.bytes();
  }
  return {};
}

void AllToAllV::pack(const DispatchArgs& args) {
  for_blocks(*sizing_.team, sent_count_, [&](int64_t i) {
    const auto [token, rank] = sent_[static_cast<size_t>(i)];
    std::byte* const to = send_.data() + i * wire_.bytes();
    wire_.pack({.row = args.hidden.row(token), .ids = args.topk.ids_of(token), .weights = {}}, to);
    for (int64_t s = 0; s < args.topk.k; ++s) {
      const int32_t id = args.topk.ids_of(token)[static_cast<size_t>(s)];
      if (sizing_.map.owner(id) != rank) wire_.set_id(to, s, kElsewhere);
    }
  });
}

Result<ExpertsInput> AllToAllV::finish_dispatch() {
  ROTA_RETURN_IF_ERROR(sizing_.communicator->finish_exchange());
  arrived_.unpack(wire_, received_.data(), first_token_.back());
  return arrived_.input();
}

Result<Reduced<float>> AllToAllV::combine(const ExpertsOutput& experts, MatrixView<float> out) {
  check_width(experts, out);
  ROTA_RETURN_IF_ERROR(home_.bring(experts, first_token_, args_->topk));
  home_.sum(args_->topk, out);
  return loopback().reduce(Partial<float>(out));  // all of the sum is here
}

}  // namespace

PrepareFinalizeKind alltoallv_kind() {
  return {.needs = AllToAllV::needs, .make = AllToAllV::make};
}

}  // namespace rota
