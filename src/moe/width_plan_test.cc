#include "moe/width_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "moe/experts.h"

namespace rota {
namespace {

// A backend that only has widths.
class WidthsOnly final : public ExpertsBackend {
 public:
  WidthsOnly(ExpertsAlignment alignment, int64_t output_alignment)
      : alignment_(alignment), output_alignment_(output_alignment) {}

  std::string_view name() const override { return "widths_only"; }
  std::optional<std::string> refuse_machine(const BackendContext&) const override {
    return std::nullopt;
  }
  std::optional<std::string> refuse(const MoeConfig&, const BackendContext&) const override {
    return std::nullopt;
  }
  ExpertsAlignment alignment(const MoeConfig&) const override { return alignment_; }
  Extent output(const MoeConfig&, Extent in) const override {
    return Extent::rounded_up(in.logical(), output_alignment_);
  }
  const KernelTable* kernels(const KernelTable* best) const override { return best; }
  Bytes workspace_bytes(const ExpertsSizing&) const override { return {0}; }
  Result<ExpertsOutput> run(const ExpertsRun&) const override {
    return error(StatusCode::kUnsupported, "has widths only");
  }

 private:
  ExpertsAlignment alignment_;
  int64_t output_alignment_;
};

struct Shape {
  int64_t hidden, intermediate;
};

const WidthStep* find(const std::vector<WidthStep>& steps, std::string_view name) {
  const auto at =
      std::find_if(steps.begin(), steps.end(), [&](const auto& s) { return s.name == name; });
  return at == steps.end() ? nullptr : &*at;
}

int64_t position(const std::vector<WidthStep>& steps, std::string_view name) {
  const WidthStep* step = find(steps, name);
  return step == nullptr ? -1 : step - steps.data();
}

// What must hold of every plan that exists, written down by hand.
void expect_invariants(const PlanInputs& in, const ExpertsAlignment& alignment,
                       const WidthPlan& plan) {
  const MoeConfig& moe = in.moe;
  const int64_t experts_hidden = moe.latent > 0 ? moe.latent : moe.hidden;

  // R7: the router and the shared experts see the full, unpadded, unprojected row.
  EXPECT_EQ(plan.router_in, Extent(moe.hidden));
  EXPECT_EQ(plan.shared_in.has_value(), moe.shared_intermediate > 0);
  if (plan.shared_in) {
    EXPECT_EQ(*plan.shared_in, Extent(moe.hidden));
  }

  // Latent widths where there is a latent, and only there.
  EXPECT_EQ(plan.latent_in.has_value(), moe.latent > 0);
  EXPECT_EQ(plan.latent_out.has_value(), moe.latent > 0);
  if (plan.latent_in) {
    EXPECT_EQ(*plan.latent_in, Extent(moe.latent));
  }
  if (plan.latent_out) {
    EXPECT_EQ(*plan.latent_out, Extent(moe.hidden));
  }

  // Padding never changes what is meant.
  EXPECT_EQ(plan.dispatch.logical(), experts_hidden);
  EXPECT_EQ(plan.experts_in.logical(), experts_hidden);
  EXPECT_EQ(plan.experts_out.logical(), experts_hidden);

  // Backend and command line are both obeyed, with the smallest legal width.
  const int64_t asked = std::max<int64_t>(1, in.hidden_alignment);
  EXPECT_EQ(plan.experts_in.padded() % alignment.hidden, 0);
  EXPECT_EQ(plan.experts_in.padded() % asked, 0);
  EXPECT_LT(plan.experts_in.padded() - experts_hidden, alignment.hidden * asked);

  // R4: the combine buffer follows the experts' output, not what went in.
  EXPECT_EQ(plan.experts_out, in.experts->output(moe, plan.experts_in));
  EXPECT_EQ(plan.combine.logical(), plan.experts_out.logical());

  // Nothing after the cut is padded; the cut comes before reduce, latent_out and shared_add.
  EXPECT_EQ(plan.cut, Extent(plan.experts_out.logical()));
  EXPECT_EQ(plan.final, Extent(moe.hidden));
  const auto steps = plan.steps();
  const int64_t cut = position(steps, "cut");
  ASSERT_GE(cut, 0);
  for (const std::string_view late : {"reduce", "latent_out", "shared_add", "final"}) {
    if (find(steps, late) != nullptr) {
      EXPECT_GT(position(steps, late), cut) << late;
    }
  }
  for (size_t i = static_cast<size_t>(cut); i < steps.size(); ++i) {
    EXPECT_FALSE(steps[i].width.is_padded()) << steps[i].name;
    EXPECT_NE(steps[i].action, WidthAction::kPad) << steps[i].name;
  }
  EXPECT_EQ(find(steps, "cut")->action == WidthAction::kCut,
            plan.experts_out.is_padded() || plan.combine.is_padded());
  for (const WidthStep& step : steps) {
    EXPECT_EQ(step.reason.empty(), step.action == WidthAction::kPass) << step.name;
    EXPECT_EQ(step.action == WidthAction::kPad, step.width.is_padded()) << step.name;
    // Every pad has somebody who asked for it and somebody who ends it.
    EXPECT_EQ(step.padded_by.empty(), !step.width.is_padded()) << step.name;
    EXPECT_EQ(step.cut_by.empty(), !step.width.is_padded()) << step.name;
  }

  // The last width before `final` is the model's.
  const std::string_view before = plan.shared_add   ? "shared_add"
                                  : plan.latent_out ? "latent_out"
                                                    : "cut";
  EXPECT_EQ(find(steps, before)->width, Extent(moe.hidden));

  // A sum is owed exactly where several ranks worked and the transport did not sum at home.
  EXPECT_EQ(plan.reduce.has_value(), in.parallel.ranks() > 1 && in.transport == Transport::kNoDpEp);

  // That of the shared experts, where tensor-parallel ranks have a part of them each.
  EXPECT_EQ(plan.shared_reduce.has_value(), plan.shared_add && in.parallel.tp > 1);
  EXPECT_LT(position(steps, "shared_reduce"), plan.shared_add ? position(steps, "shared_add") : 0);

  // Transports: what each rounds to.
  switch (in.transport) {
    case Transport::kNoDpEp:
    case Transport::kAllgatherReducescatter:
      EXPECT_EQ(plan.dispatch, Extent(experts_hidden));
      EXPECT_EQ(plan.combine, Extent(experts_hidden));
      break;
    case Transport::kAlltoallv:
      EXPECT_EQ(plan.dispatch.padded() * 2 % 512, 0);
      EXPECT_LT(plan.dispatch.padded() - experts_hidden, 256);
      break;
    case Transport::kLowLatency: {
      const std::vector<int64_t> sizes = {2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192};
      EXPECT_EQ(plan.dispatch.padded(),
                *std::lower_bound(sizes.begin(), sizes.end(), experts_hidden));
      break;
    }
  }
}

// The shards of all ranks cover the intermediate width once, in whole blocks, from logical sizes.
void expect_shards_cover(PlanInputs in) {
  const int64_t block = in.moe.format == WeightFormat::kMxfp4 ? 32 : 1;
  int64_t covered = 0;
  for (int rank = 0; rank < in.parallel.ranks(); ++rank) {
    in.parallel.rank = rank;
    const WidthPlan plan = *plan_widths(in);
    if (in.parallel.expert_parallel) {
      EXPECT_EQ(plan.intermediate->logical(), in.moe.intermediate);
      EXPECT_EQ(plan.intermediate_begin, 0);
      continue;
    }
    EXPECT_EQ(plan.intermediate_begin, covered);
    if (!plan.intermediate) continue;
    EXPECT_EQ(plan.intermediate_begin % block, 0);
    covered += plan.intermediate->logical();
    if (in.intermediate_alignment > 0) {
      EXPECT_EQ(plan.intermediate->padded() % in.intermediate_alignment, 0);
    }
  }
  if (!in.parallel.expert_parallel) {
    EXPECT_EQ(covered, in.moe.intermediate);
  }
}

TEST(WidthPlan, EveryCombinationKeepsTheRules) {
  const std::vector<Shape> shapes = {
      {2880, 2880}, {2688, 1856}, {4096, 14336}, {72, 104}, {576, 192}};
  const std::vector<ExpertsAlignment> alignments = {{1, 1}, {32, 32}, {256, 128}, {512, 256}};
  const std::vector<ParallelShape> parallels = {
      {1, 1, false, 0}, {1, 4, false, 0}, {1, 4, true, 0},  {2, 1, true, 0},
      {4, 2, true, 0},  {2, 2, false, 0}, {1, 16, false, 0}};
  int planned = 0, refused = 0;
  for (const Shape& shape : shapes)
    for (const int64_t latent : {0, 1024})
      for (const int64_t shared : {0, 3712})
        for (const bool gated : {true, false})
          for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kMxfp4})
            for (const ExpertsAlignment& alignment : alignments)
              for (const int64_t output_alignment : {int64_t{1}, alignment.hidden})
                for (const int64_t asked : {0, 96, 512})
                  for (const ParallelShape& parallel : parallels)
                    for (const Transport transport :
                         {Transport::kNoDpEp, Transport::kAllgatherReducescatter,
                          Transport::kAlltoallv, Transport::kLowLatency}) {
                      MoeConfig moe;
                      moe.hidden = shape.hidden;
                      moe.intermediate = shape.intermediate;
                      moe.latent = latent;
                      moe.shared_intermediate = shared;
                      moe.format = format;
                      moe.activation =
                          gated ? ExpertActivation::kSiluMul : ExpertActivation::kRelu2;
                      const WidthsOnly backend(alignment, output_alignment);
                      const PlanInputs in{.moe = moe,
                                          .experts = &backend,
                                          .transport = transport,
                                          .parallel = parallel,
                                          .hidden_alignment = asked,
                                          .intermediate_alignment = asked};
                      SCOPED_TRACE(::testing::Message()
                                   << shape.hidden << " latent " << latent << " shared " << shared
                                   << " aligned " << alignment.hidden << " asked " << asked
                                   << " dp " << parallel.dp << " tp " << parallel.tp << " ep "
                                   << parallel.expert_parallel << " " << to_string(transport));
                      const auto plan = plan_widths(in);
                      const bool moves = transport != Transport::kNoDpEp;
                      const bool fits = (parallel.dp > 1) == moves &&
                                        (!moves || parallel.expert_parallel ||
                                         transport == Transport::kAllgatherReducescatter);
                      ASSERT_EQ(plan.ok(), fits);
                      if (!plan.ok()) {
                        ++refused;
                        continue;
                      }
                      ++planned;
                      EXPECT_EQ(plan->gated, gated);
                      expect_invariants(in, alignment, *plan);
                      expect_shards_cover(in);
                      if (HasFailure()) return;
                    }
  EXPECT_GT(planned, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(WidthPlan, GptOssWithAlignment256) {
  MoeConfig moe;
  moe.hidden = 2880;
  moe.intermediate = 2880;
  const WidthsOnly backend({32, 32}, 32);
  const WidthPlan plan = *plan_widths({.moe = moe, .experts = &backend, .hidden_alignment = 256});
  EXPECT_EQ(to_string(plan.experts_in), "2880 -> 3072");
  EXPECT_EQ(to_string(*plan.intermediate), "2880");
}

// vLLM #56359: 384 became 512, a third more memory. The smallest legal width is taken.
TEST(WidthPlan, PaddingIsTheSmallestThatIsLegal) {
  MoeConfig moe;
  moe.hidden = 384;
  moe.intermediate = 384;
  const WidthsOnly backend({128, 64}, 128);
  const WidthPlan plan = *plan_widths({.moe = moe, .experts = &backend});
  EXPECT_FALSE(plan.experts_in.is_padded());
  EXPECT_FALSE(plan.intermediate->is_padded());
}

MoeConfig layer_of(Shape shape, int64_t latent = 0, int64_t shared = 0) {
  MoeConfig moe;
  moe.hidden = shape.hidden;
  moe.intermediate = shape.intermediate;
  moe.latent = latent;
  moe.shared_intermediate = shared;
  return moe;
}

// vLLM #52051: the buffer of the finalize was as wide as the padded input; the experts came back
// with 2880.
TEST(WidthPlan, CombineIsAsWideAsTheExpertsOutputNotAsTheInput) {
  const WidthsOnly backend({256, 128}, 1);
  const WidthPlan plan =
      *plan_widths({.moe = layer_of({2880, 2880}),
                    .experts = &backend,
                    .transport = Transport::kAllgatherReducescatter,
                    .parallel = {.dp = 8, .tp = 1, .expert_parallel = true, .rank = 3}});
  EXPECT_EQ(plan.experts_in, Extent(2880, 3072));
  EXPECT_EQ(plan.combine, Extent(2880));
}

// vLLM #36926, #39688: hidden was rounded to the transport's list, intermediate was forgotten.
TEST(WidthPlan, NanoOnLowLatencyRoundsHiddenAndIntermediateEachByItsOwnRule) {
  const WidthsOnly backend({1, 128}, 1);
  const WidthPlan plan = *plan_widths({.moe = layer_of({2688, 1856}, 0, 3712),
                                       .experts = &backend,
                                       .transport = Transport::kLowLatency,
                                       .parallel = {.dp = 8, .tp = 1, .expert_parallel = true}});
  EXPECT_EQ(plan.dispatch, Extent(2688, 3072));
  EXPECT_EQ(plan.combine, Extent(2688, 3072));
  EXPECT_EQ(plan.experts_in, Extent(2688));
  EXPECT_EQ(*plan.intermediate, Extent(1856, 1920));
}

// vLLM #40794, #40865, #41184: padded rows were added to the shared experts' output; "latent OR
// shared" was written as AND.
TEST(WidthPlan, TheCutComesFirstWithLatentOrSharedOrBothOrNeither) {
  const WidthsOnly backend({512, 1}, 512);
  for (const int64_t latent : {0, 1000}) {
    for (const int64_t shared : {0, 3712}) {
      const WidthPlan plan =
          *plan_widths({.moe = layer_of({2688, 1856}, latent, shared), .experts = &backend});
      const auto steps = plan.steps();
      ASSERT_TRUE(plan.experts_out.is_padded());
      EXPECT_EQ(find(steps, "cut")->action, WidthAction::kCut);
      EXPECT_EQ(plan.cut, Extent(latent > 0 ? latent : 2688));
      for (const std::string_view late : {"latent_out", "shared_add"}) {
        const int64_t at = position(steps, late);
        EXPECT_TRUE(at == -1 || at > position(steps, "cut")) << late;
      }
    }
  }
}

// vLLM #39510: a hidden width that is no multiple of 512 was refused, then padded all the same.
TEST(WidthPlan, AWidthThatIsNoMultipleOf512IsPaddedToOne) {
  const WidthsOnly backend({512, 1}, 512);
  const WidthPlan plan = *plan_widths({.moe = layer_of({2880, 2880}), .experts = &backend});
  EXPECT_EQ(plan.experts_in, Extent(2880, 3072));
}

// vLLM #43865, TensorRT-LLM #15846, #16198: shards were cut by the padded stride, or not at all.
TEST(WidthPlan, ShardsBeginWhereTheLogicalOnesBeforeThemEnd) {
  const WidthsOnly backend({1, 256}, 1);
  MoeConfig moe = layer_of({2688, 1856});
  std::vector<int64_t> begins;
  for (int rank = 0; rank < 4; ++rank) {
    const WidthPlan plan = *plan_widths(
        {.moe = moe, .experts = &backend, .parallel = {.dp = 1, .tp = 4, .rank = rank}});
    begins.push_back(plan.intermediate_begin);
    EXPECT_EQ(*plan.intermediate, Extent(464, 512));
  }
  EXPECT_EQ(begins, (std::vector<int64_t>{0, 464, 928, 1392}));
}

// vLLM #55649, #48624: padding at the end of [gate; up] moved the boundary between the two.
TEST(WidthPlan, GateAndUpArePaddedEachOnItsOwn) {
  const WidthsOnly backend({1, 128}, 1);
  const WidthPlan plan = *plan_widths(
      {.moe = layer_of({2048, 704}), .experts = &backend, .parallel = {.dp = 1, .tp = 2}});
  EXPECT_EQ(*plan.intermediate, Extent(352, 384));  // one of the two, not 704 -> 768
}

// vLLM #50928: without expert parallel the divisor is data parallel times tensor parallel.
TEST(WidthPlan, WithoutExpertParallelExpertsAreCutOverAllRanks) {
  const WidthsOnly backend({1, 1}, 1);
  const PlanInputs cut{.moe = layer_of({4096, 14336}),
                       .experts = &backend,
                       .transport = Transport::kAllgatherReducescatter,
                       .parallel = {.dp = 4, .tp = 2}};
  EXPECT_EQ(plan_widths(cut)->intermediate->logical(), 14336 / 8);
  PlanInputs whole = cut;
  whole.parallel.expert_parallel = true;
  EXPECT_EQ(plan_widths(whole)->intermediate->logical(), 14336);
}

// SGLang #27528, vLLM #34087, #46077: the router or the shared experts got the padded or the latent
// row.
TEST(WidthPlan, RouterAndSharedExpertsSeeTheRowAsItIs) {
  const WidthsOnly backend({256, 128}, 256);
  const WidthPlan plan =
      *plan_widths({.moe = layer_of({4096, 2688}, 1000, 5376), .experts = &backend});
  EXPECT_EQ(plan.router_in, Extent(4096));
  EXPECT_EQ(*plan.shared_in, Extent(4096));
  EXPECT_EQ(*plan.shared_add, Extent(4096));
  EXPECT_EQ(plan.experts_in, Extent(1000, 1024));
}

// vLLM #49122, SGLang #37199: sums were reduced twice. A sum is owed once, or not at all.
TEST(WidthPlan, ASumIsOwedWhereTheTransportDoesNotBringItHome) {
  const WidthsOnly backend({1, 1}, 1);
  const MoeConfig moe = layer_of({2048, 768});
  const auto owed = [&](Transport transport, ParallelShape shape) {
    return plan_widths({.moe = moe, .experts = &backend, .transport = transport, .parallel = shape})
        ->reduce.has_value();
  };
  EXPECT_FALSE(owed(Transport::kNoDpEp, {.dp = 1, .tp = 1, .expert_parallel = true}));
  EXPECT_TRUE(owed(Transport::kNoDpEp, {.dp = 1, .tp = 4}));
  EXPECT_TRUE(owed(Transport::kNoDpEp, {.dp = 1, .tp = 4, .expert_parallel = true}));
  EXPECT_FALSE(owed(Transport::kAlltoallv, {.dp = 4, .tp = 1, .expert_parallel = true}));
  EXPECT_FALSE(owed(Transport::kAllgatherReducescatter, {.dp = 4, .tp = 1}));
}

TEST(WidthPlan, EveryPadSaysWhoAskedAndWhoEndsIt) {
  const WidthsOnly backend({32, 32}, 32);
  const WidthPlan plan = *plan_widths({.moe = layer_of({2880, 2880}),
                                       .experts = &backend,
                                       .transport = Transport::kAlltoallv,
                                       .parallel = {.dp = 2, .tp = 1, .expert_parallel = true},
                                       .intermediate_alignment = 128});
  const auto steps = plan.steps();
  EXPECT_EQ(find(steps, "dispatch")->padded_by, "alltoallv");
  EXPECT_EQ(find(steps, "dispatch")->cut_by, "gather");
  EXPECT_EQ(find(steps, "experts_in")->padded_by, "");
  EXPECT_EQ(find(steps, "intermediate")->padded_by, "--moe-intermediate-alignment");
  EXPECT_EQ(find(steps, "intermediate")->cut_by, "down");
  EXPECT_EQ(find(steps, "combine")->cut_by, "cut");
  for (const WidthStep& step : steps) {
    if (!step.cut_by.empty()) {
      EXPECT_FALSE(describe_cut(step.cut_by).empty());
    }
  }
}

TEST(WidthPlan, LowLatencyAbove8192IsAnErrorThatSaysSo) {
  MoeConfig moe;
  moe.hidden = 8193;
  moe.intermediate = 64;
  const WidthsOnly backend({1, 1}, 1);
  const auto plan = plan_widths({.moe = moe,
                                 .experts = &backend,
                                 .transport = Transport::kLowLatency,
                                 .parallel = {.dp = 2, .tp = 1, .expert_parallel = true}});
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.status().message().find("8193"), std::string::npos);
}

TEST(WidthPlan, AlignmentsOutOfRangeNameTheFlag) {
  MoeConfig moe;
  moe.hidden = 64;
  moe.intermediate = 64;
  const WidthsOnly backend({1, 1}, 1);
  const auto hidden = plan_widths({.moe = moe, .experts = &backend, .hidden_alignment = -1});
  ASSERT_FALSE(hidden.ok());
  EXPECT_NE(hidden.status().message().find("--moe-hidden-alignment -1"), std::string::npos);
  const auto intermediate =
      plan_widths({.moe = moe, .experts = &backend, .intermediate_alignment = 1 << 20});
  ASSERT_FALSE(intermediate.ok());
  EXPECT_NE(intermediate.status().message().find("--moe-intermediate-alignment"),
            std::string::npos);
}

TEST(ShardRange, GptOssInWholeBlocks) {
  const auto widths = [](int parts) {
    std::vector<int64_t> out;
    for (int i = 0; i < parts; ++i) {
      const ShardRange range = shard_range(2880, 32, parts, i);
      out.push_back(range.end - range.begin);
    }
    return out;
  };
  EXPECT_EQ(widths(4), (std::vector<int64_t>{736, 736, 736, 672}));
  EXPECT_EQ(widths(8), (std::vector<int64_t>{384, 384, 384, 384, 384, 384, 384, 192}));
  const auto sixteen = widths(16);
  EXPECT_EQ(sixteen[14], 192);
  EXPECT_EQ(sixteen[15], 0);
}

}  // namespace
}  // namespace rota
