// low_latency: rows are put into fixed slots, one-sided; no rank waits for what another has to send
// but once a pass, and nothing is exchanged or gathered. For the few tokens of a decode step:
// memory is taken for as many as there could be.
//
//   dispatch  a row into its expert's window [source rank][local expert][max_tokens], beside it the
//             number of the slot; counts for each [source rank][local expert]
//   experts   batched format: [local expert][places], what came first, source by source
//   combine   a row into its home's window [slot], where they are summed
// Hidden sizes are rounded to those of a list (width_plan.h). Two windows take turns: a rank that
// puts for dispatch has seen everybody finish reading the last one, since they have put for combine
// since.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "moe/prepare_finalize/kinds.h"
#include "moe/prepare_finalize/sum_slots.h"
#include "moe/prepare_finalize/wire.h"
#include "platform/memory.h"

namespace rota {
namespace {

constexpr int64_t kIndex = sizeof(int32_t);

// Where things lie in every rank's windows. `cell`: a source rank and one of the target's experts.
struct WindowLayout {
  explicit WindowLayout(const PrepareFinalizeSizing& sizing)
      : experts(sizing.most_experts()),
        max_tokens(sizing.max_tokens),
        row(WireRow(sizing.plan->dispatch, sizing.compute)),
        home_row(WireRow::home(sizing.plan->combine)),
        cells(sizing.ranks * experts),
        home_slots(max_tokens * sizing.config->router.top_k) {}

  int64_t cell(int source, int64_t local) const { return source * experts + local; }
  int64_t count_at(int64_t cell) const { return cell * kIndex; }
  int64_t slot_at(int64_t cell, int64_t i) const {
    return (cells + cell * max_tokens + i) * kIndex;
  }
  int64_t row_at(int64_t cell, int64_t i) const {
    return rows_begin() + (cell * max_tokens + i) * row.bytes();
  }
  int64_t home_at(int64_t slot) const { return slot * home_row.bytes(); }
  Bytes dispatch_bytes() const { return {row_at(cells, 0)}; }
  Bytes home_bytes() const { return {home_at(home_slots)}; }

  int64_t experts;  // of each rank at most
  int64_t max_tokens;
  WireRow row;
  WireRow home_row;
  int64_t cells;
  int64_t home_slots;

 private:
  int64_t rows_begin() const {
    return round_up(slot_at(cells, 0), static_cast<int64_t>(kCacheLine));
  }
};

int64_t max_arrived(const PrepareFinalizeSizing& sizing) {
  return sizing.max_tokens * sizing.ranks * sizing.most_slots();
}
// Of one expert: each token once.
int64_t places(const PrepareFinalizeSizing& sizing) { return sizing.max_tokens * sizing.ranks; }

class LowLatency final : public PrepareFinalize {
 public:
  static PrepareFinalizeNeeds needs(const PrepareFinalizeSizing& sizing);
  static Result<std::unique_ptr<PrepareFinalize>> make(const PrepareFinalizeSizing& sizing);

  std::string_view name() const override { return to_string(Transport::kLowLatency); }
  ActivationFormat format() const override { return ActivationFormat::kBatched; }

  Status start_dispatch(const DispatchArgs& args) override;
  Result<ExpertsInput> finish_dispatch() override;
  Result<Reduced<float>> combine(const ExpertsOutput& experts, MatrixView<float> out) override;

 private:
  // A row that came: where it lies, its place among its expert's, and where it goes back to.
  struct Arrival {
    int64_t at = 0;  // in the window, bytes
    int64_t place = 0;
    int32_t source = 0;
    int32_t slot = 0;  // of the source
  };
  explicit LowLatency(const PrepareFinalizeSizing& sizing);
  Status allocate();
  // Parts of start_dispatch(), in order.
  void pack_rows(const DispatchArgs& args);
  Status put_rows(const TopK& topk);
  Status put_counts();
  // Parts of finish_dispatch(), in order.
  Status collect();
  void unpack();

  const PrepareFinalizeSizing sizing_;
  const WindowLayout layout_;
  std::unique_ptr<CommWindow> dispatch_;
  std::unique_ptr<CommWindow> home_;
  // What is being put must not change until the epoch is finished.
  Buffer rows_;                      // [T, row]
  std::vector<int32_t> put_slots_;   // [ranks * experts of each][max_tokens]
  std::vector<int32_t> put_counts_;  // [ranks * experts of each]
  Buffer home_rows_;                 // [arrived, home row]
  std::vector<Arrival> arrivals_;    // expert by expert, source by source
  int64_t arrived_ = 0;
  std::vector<int32_t> counts_;       // [local experts]
  Matrix<float> hidden_;              // [local experts * places, dispatch]
  std::optional<DispatchArgs> args_;  // of the pass
};

LowLatency::LowLatency(const PrepareFinalizeSizing& sizing)
    : sizing_(sizing),
      layout_(sizing),
      put_slots_(static_cast<size_t>(layout_.cells * layout_.max_tokens)),
      put_counts_(static_cast<size_t>(layout_.cells)),
      arrivals_(static_cast<size_t>(max_arrived(sizing))),
      counts_(static_cast<size_t>(sizing.map.local_count())) {}

PrepareFinalizeNeeds LowLatency::needs(const PrepareFinalizeSizing& sizing) {
  const WindowLayout layout(sizing);
  const int64_t hidden_rows = layout.experts * places(sizing);
  const Bytes windows = layout.dispatch_bytes() + layout.home_bytes();
  const Bytes staged = Bytes{layout.row.bytes()} * sizing.max_tokens +
                       Bytes{layout.home_row.bytes()} * max_arrived(sizing);
  const Bytes indices = Bytes{kIndex} * (layout.cells * (layout.max_tokens + 1)) +
                        Bytes{static_cast<int64_t>(sizeof(Arrival))} * max_arrived(sizing);
  const Bytes hidden = size_of(DType::kF32) * (hidden_rows * sizing.plan->dispatch.logical());
  return {.tokens = sizing.max_tokens * sizing.ranks,
          .places = places(sizing),
          .workspace = windows + staged + indices + hidden};
}

Result<std::unique_ptr<PrepareFinalize>> LowLatency::make(const PrepareFinalizeSizing& sizing) {
  auto made = std::unique_ptr<LowLatency>(new LowLatency(sizing));
  ROTA_RETURN_IF_ERROR(made->allocate());
  return std::unique_ptr<PrepareFinalize>(std::move(made));
}

Status LowLatency::allocate() {
  const auto allocate = [](int64_t rows, const WireRow& row) {
    return Buffer::allocate(static_cast<size_t>(rows * row.bytes()), Fill::kUnspecified);
  };
  ROTA_ASSIGN_OR_RETURN(rows_, allocate(layout_.max_tokens, layout_.row));
  ROTA_ASSIGN_OR_RETURN(home_rows_, allocate(max_arrived(sizing_), layout_.home_row));
  ROTA_ASSIGN_OR_RETURN(hidden_,
                        Matrix<float>::allocate(sizing_.map.local_count() * places(sizing_),
                                                Extent(sizing_.plan->dispatch.logical())));
  ROTA_ASSIGN_OR_RETURN(dispatch_, sizing_.communicator->make_window(layout_.dispatch_bytes()));
  ROTA_ASSIGN_OR_RETURN(home_, sizing_.communicator->make_window(layout_.home_bytes()));
  return {};
}

Status LowLatency::start_dispatch(const DispatchArgs& args) {
  args_ = args;
  pack_rows(args);
  ROTA_RETURN_IF_ERROR(put_rows(args.topk));
  return put_counts();
}

void LowLatency::pack_rows(const DispatchArgs& args) {
  for_blocks(*sizing_.team, args.topk.tokens, [&](int64_t token) {
    layout_.row.pack(args.hidden.row(token), rows_.data() + token * layout_.row.bytes());
  });
}

Status LowLatency::put_rows(const TopK& topk) {
  const int me = sizing_.communicator->rank();
  std::fill(put_counts_.begin(), put_counts_.end(), 0);
  for (int64_t slot = 0; slot < topk.tokens * topk.k; ++slot) {
    const int32_t expert = topk.ids[slot];
    const int owner = sizing_.map.owner(expert);
    const int64_t local = sizing_.map.local_at_owner(expert);
    const int64_t to = layout_.cell(owner, local);  // here as [target][its expert]
    const int64_t i = put_counts_[static_cast<size_t>(to)]++;
    put_slots_[static_cast<size_t>(to * layout_.max_tokens + i)] = static_cast<int32_t>(slot);
    const auto row = static_cast<size_t>(layout_.row.bytes());
    ROTA_RETURN_IF_ERROR(dispatch_->put(owner, {layout_.row_at(layout_.cell(me, local), i)},
                                        {rows_.data() + slot / topk.k * layout_.row.bytes(), row}));
  }
  return {};
}

Status LowLatency::put_counts() {
  const int me = sizing_.communicator->rank();
  for (int target = 0; target < sizing_.ranks; ++target) {
    const auto first = static_cast<size_t>(layout_.cell(target, 0));
    const auto experts = static_cast<size_t>(sizing_.map.count_of(target));
    if (experts == 0) continue;
    const auto counts = std::span(put_counts_).subspan(first, experts);
    ROTA_RETURN_IF_ERROR(
        dispatch_->put(target, {layout_.count_at(layout_.cell(me, 0))}, std::as_bytes(counts)));
    for (size_t local = 0; local < experts; ++local) {
      if (counts[local] == 0) continue;
      const auto slots = std::span(put_slots_)
                             .subspan((first + local) * static_cast<size_t>(layout_.max_tokens),
                                      static_cast<size_t>(counts[local]));
      const int64_t cell = layout_.cell(me, static_cast<int64_t>(local));
      ROTA_RETURN_IF_ERROR(
          dispatch_->put(target, {layout_.slot_at(cell, 0)}, std::as_bytes(slots)));
    }
  }
  return {};
}

Result<ExpertsInput> LowLatency::finish_dispatch() {
  ROTA_RETURN_IF_ERROR(dispatch_->finish_epoch());
  ROTA_RETURN_IF_ERROR(collect());
  unpack();
  return ExpertsInput{.hidden = hidden_.view(),
                      .batched = BatchedTokens{.places = places(sizing_), .counts = counts_}};
}

Status LowLatency::collect() {
  const std::span<const std::byte> window = dispatch_->memory();
  const auto number = [&](int64_t at) {
    int32_t value = 0;
    std::memcpy(&value, window.data() + at, sizeof value);
    return value;
  };
  arrived_ = 0;
  for (int64_t local = 0; local < std::ssize(counts_); ++local) {
    int32_t& filled = counts_[static_cast<size_t>(local)];
    filled = 0;
    for (int source = 0; source < sizing_.ranks; ++source) {
      const int64_t cell = layout_.cell(source, local);
      const int32_t count = number(layout_.count_at(cell));
      if (count < 0 || count > args_->tokens_of_rank[static_cast<size_t>(source)]) {
        return error(
            StatusCode::kInternal,
            "low_latency: rank {} puts {} rows for an expert, it has {} tokens in this pass",
            source, count, args_->tokens_of_rank[static_cast<size_t>(source)]);
      }
      for (int32_t i = 0; i < count; ++i) {
        arrivals_[static_cast<size_t>(arrived_++)] = {.at = layout_.row_at(cell, i),
                                                      .place = local * places(sizing_) + filled++,
                                                      .source = source,
                                                      .slot = number(layout_.slot_at(cell, i))};
      }
    }
  }
  return {};
}

void LowLatency::unpack() {
  const std::byte* const window = dispatch_->memory().data();
  for_blocks(*sizing_.team, arrived_, [&](int64_t i) {
    const Arrival& arrival = arrivals_[static_cast<size_t>(i)];
    const MatrixView<float> row = hidden_.view().row_range(arrival.place, 1);
    layout_.row.unpack(*sizing_.kernels, window + arrival.at, row.row(0));
    poison_tails(row);
  });
}

Result<Reduced<float>> LowLatency::combine(const ExpertsOutput& experts, MatrixView<float> out) {
  check_width(experts, out);
  const WireRow& wire = layout_.home_row;
  const auto staged = [&](int64_t i) { return home_rows_.data() + i * wire.bytes(); };
  for_blocks(*sizing_.team, arrived_, [&](int64_t i) {
    wire.pack(*experts.row(arrivals_[static_cast<size_t>(i)].place), staged(i));
  });
  for (int64_t i = 0; i < arrived_; ++i) {
    const Arrival& arrival = arrivals_[static_cast<size_t>(i)];
    ROTA_RETURN_IF_ERROR(home_->put(arrival.source, {layout_.home_at(arrival.slot)},
                                    {staged(i), static_cast<size_t>(wire.bytes())}));
  }
  ROTA_RETURN_IF_ERROR(home_->finish_epoch());
  const std::byte* const window = home_->memory().data();
  const auto row_of = [&](int64_t slot) {
    return std::optional(wire.view(window + layout_.home_at(slot)));
  };
  sum_slots(sizing_, args_->topk, row_of, out);
  return loopback().reduce(Partial<float>(out));  // all of the sum is here
}

}  // namespace

PrepareFinalizeKind low_latency_kind() {
  return {.needs = LowLatency::needs, .make = LowLatency::make};
}

}  // namespace rota
