// no_dp_ep: all tokens are here already and stay here, on every rank. combine() sums each token's
// experts in slot order; slots of experts that other ranks hold add nothing, and what this rank's
// experts (or shards of them) add up to is summed over the ranks. Standard format, any hidden size.
#include "moe/prepare_finalize/kinds.h"
#include "moe/prepare_finalize/sum_slots.h"

namespace rota {
namespace {

class NoDpEp final : public PrepareFinalize {
 public:
  static PrepareFinalizeNeeds needs(const PrepareFinalizeSizing& sizing) {
    return {.tokens = sizing.max_tokens, .places = 0, .workspace = {}};
  }
  static Result<std::unique_ptr<PrepareFinalize>> make(const PrepareFinalizeSizing& sizing) {
    return std::unique_ptr<PrepareFinalize>(new NoDpEp(sizing));
  }

  std::string_view name() const override { return to_string(Transport::kNoDpEp); }
  ActivationFormat format() const override { return ActivationFormat::kStandard; }

  Status start_dispatch(const DispatchArgs& args) override {
    args_ = args;
    return {};
  }

  Result<ExpertsInput> finish_dispatch() override {
    return ExpertsInput{.hidden = args_->hidden, .topk = args_->topk};
  }

  Result<Reduced<float>> combine(const ExpertsOutput& experts, MatrixView<float> out) override {
    check_width(experts, out);
    sum_slots(sizing_, args_->topk, [&](int64_t slot) { return experts.row(slot); }, out);
    return sizing_.communicator->reduce(Partial<float>(out));
  }

 private:
  explicit NoDpEp(const PrepareFinalizeSizing& sizing) : sizing_(sizing) {}

  const PrepareFinalizeSizing sizing_;
  std::optional<DispatchArgs> args_;  // of the pass
};

}  // namespace

PrepareFinalizeKind no_dp_ep_kind() { return {.needs = NoDpEp::needs, .make = NoDpEp::make}; }

}  // namespace rota
