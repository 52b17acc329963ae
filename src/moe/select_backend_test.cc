#include "moe/select_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moe/plan.h"

namespace rota {
namespace {

using ::testing::HasSubstr;

BackendContext context(Isa isa, bool avx2 = true) {
  BackendContext out;
  out.cpu.model_name = "Test CPU";
  out.cpu.avx2 = avx2;
  out.isa = isa;
  return out;
}

MoeConfig gpt_oss(WeightFormat format) {
  MoeConfig moe;
  moe.hidden = 2880;
  moe.intermediate = 2880;
  moe.router.experts = 32;
  moe.router.top_k = 4;
  moe.activation = ExpertActivation::kSwigluOai;
  moe.interleaved = true;
  moe.expert_bias = true;
  moe.format = format;
  moe.order = format == WeightFormat::kMxfp4 ? WeightOrder::kOutIn : WeightOrder::kInOut;
  return moe;
}

std::string_view chosen(const MoeConfig& moe, const BackendContext& context) {
  const auto choice = select_backend(moe, context, "");
  EXPECT_TRUE(choice.ok()) << choice.status().message();
  return choice->backend->name();
}

TEST(SelectBackend, TheFirstThatServesIsTaken) {
  EXPECT_EQ(chosen(gpt_oss(WeightFormat::kMxfp4), context(Isa::kAvx2)), "cpu_mxfp4_bf16");
  EXPECT_EQ(chosen(gpt_oss(WeightFormat::kBf16), context(Isa::kAvx512)), "cpu_bf16");
  EXPECT_EQ(chosen(gpt_oss(WeightFormat::kFp8), context(Isa::kAvx512)), "cpu_fp8_bf16");
  EXPECT_EQ(chosen(gpt_oss(WeightFormat::kNvfp4), context(Isa::kAvx512)), "cpu_nvfp4_bf16");
  EXPECT_EQ(chosen(gpt_oss(WeightFormat::kMxfp4), context(Isa::kRef)), "ref");
  EXPECT_EQ(chosen(gpt_oss(WeightFormat::kBf16), context(Isa::kRef, false)), "ref");
}

TEST(SelectBackend, EveryBetterOneSaysWhyItRefused) {
  const auto choice =
      select_backend(gpt_oss(WeightFormat::kBf16), context(Isa::kRef, false), "auto");
  ASSERT_TRUE(choice.ok());
  ASSERT_EQ(choice->refused.size(), experts_backends().size() - 1);
  EXPECT_THAT(choice->describe(), HasSubstr("cpu_bf16 refused: needs AVX2 or AVX-512, which this "
                                            "CPU lacks (Test CPU)"));
  EXPECT_THAT(select_backend(gpt_oss(WeightFormat::kBf16), context(Isa::kAvx2), "")->describe(),
              HasSubstr("cpu_mxfp4_bf16 refused: takes MXFP4 weights"));
  EXPECT_THAT(select_backend(gpt_oss(WeightFormat::kBf16), context(Isa::kRef), "")->describe(),
              HasSubstr("ROTA_ISA=ref"));
}

TEST(SelectBackend, ANamedBackendThatCannotServeIsAnErrorThatSaysWhy) {
  const auto choice =
      select_backend(gpt_oss(WeightFormat::kMxfp4), context(Isa::kAvx2), "cpu_bf16");
  ASSERT_FALSE(choice.ok());
  EXPECT_EQ(choice.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(choice.status().message(), HasSubstr("--moe-backend cpu_bf16"));
  EXPECT_THAT(choice.status().message(), HasSubstr("takes BF16 weights"));
}

TEST(SelectBackend, ANamedBackendThatServesIsTaken) {
  const auto choice = select_backend(gpt_oss(WeightFormat::kMxfp4), context(Isa::kAvx2), "ref");
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->backend->name(), "ref");
  EXPECT_EQ(choice->describe(), "ref (--moe-backend)");
}

// Less exact than what --dtype promises: never by `auto`, however fast.
TEST(SelectBackend, EightBitBackendsAreChosenByNameOnly) {
  for (const auto& [name, format] : {std::pair{"cpu_mxfp4_int8", WeightFormat::kMxfp4},
                                     std::pair{"cpu_nvfp4_int8", WeightFormat::kNvfp4}}) {
    const MoeConfig moe = gpt_oss(format);
    for (const char* wanted : {"", "auto"}) {
      const auto choice = select_backend(moe, context(Isa::kAvx512), wanted);
      ASSERT_TRUE(choice.ok());
      EXPECT_EQ(choice->backend->compute(Compute::kBf16), Compute::kBf16);
      EXPECT_THAT(choice->describe(),
                  HasSubstr(std::string(name) + " refused: chosen only by name: it rounds "
                                                "activations to 8 bits"));
    }
    const auto named = select_backend(moe, context(Isa::kAvx2), name);
    ASSERT_TRUE(named.ok());
    EXPECT_EQ(named->backend->name(), name);
    for (const Compute dtype : {Compute::kFloat32, Compute::kBf16}) {
      EXPECT_EQ(named->backend->compute(dtype), Compute::kInt8);
    }
    EXPECT_THAT(select_backend(moe, context(Isa::kRef), name).status().message(),
                HasSubstr("needs AVX2 or AVX-512"));
    EXPECT_THAT(
        select_backend(gpt_oss(WeightFormat::kFp8), context(Isa::kAvx2), name).status().message(),
        HasSubstr("these are FP8"));
  }
}

TEST(SelectBackend, AnUnknownNameListsTheKnownOnes) {
  const auto choice = select_backend(gpt_oss(WeightFormat::kMxfp4), context(Isa::kAvx2), "marlin");
  ASSERT_FALSE(choice.ok());
  EXPECT_EQ(choice.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(choice.status().message(), HasSubstr("cpu_bf16, ref"));
}

TEST(SelectBackend, UngatedExpertsAreServedWhereTheyHaveNoGateToInterleave) {
  MoeConfig moe = gpt_oss(WeightFormat::kBf16);
  moe.activation = ExpertActivation::kRelu2;
  const auto choice = select_backend(moe, context(Isa::kAvx2), "");
  ASSERT_FALSE(choice.ok());
  EXPECT_THAT(choice.status().message(), HasSubstr("ref: takes relu2 without a gate only"));
  moe.interleaved = false;
  for (const std::string_view backend : {"cpu_bf16", "ref"}) {
    EXPECT_TRUE(select_backend(moe, context(Isa::kAvx2), backend).ok()) << backend;
  }
}

TEST(SelectBackend, ActivationsThatNoKernelComputesAreRefused) {
  MoeConfig moe = gpt_oss(WeightFormat::kBf16);
  moe.interleaved = false;
  EXPECT_FALSE(select_backend(moe, context(Isa::kAvx2), "").ok());
  moe.activation = ExpertActivation::kSiluMul;
  EXPECT_TRUE(select_backend(moe, context(Isa::kAvx2), "").ok());
  moe.interleaved = true;
  EXPECT_FALSE(select_backend(moe, context(Isa::kAvx2), "").ok());
}

TEST(SelectBackend, PartialMxfp4BlocksAreRefused) {
  MoeConfig moe = gpt_oss(WeightFormat::kMxfp4);
  moe.intermediate = 2890;
  const auto choice = select_backend(moe, context(Isa::kAvx2), "");
  ASSERT_FALSE(choice.ok());
  EXPECT_THAT(choice.status().message(), HasSubstr("whole blocks of 32, a width here is 2890"));
}

TEST(SelectBackend, TheMachineCanBeAskedAlone) {
  for (const ExpertsBackend* backend : experts_backends()) {
    const bool runs_anywhere = backend->name() == "ref";
    EXPECT_EQ(backend->refuse_machine(context(Isa::kRef, false)).has_value(), !runs_anywhere);
    EXPECT_FALSE(backend->refuse_machine(context(Isa::kAvx2)).has_value());
  }
}

TEST(PlanMoe, NamesBackendWidthsAndBytes) {
  const auto plan = plan_moe(gpt_oss(WeightFormat::kMxfp4),
                             {.backend = "", .hidden_alignment = 256}, context(Isa::kAvx2));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(
      describe(*plan),
      "experts cpu_mxfp4_bf16 (cpu_mxfp4_int8 refused: chosen only by name: it rounds activations "
      "to 8 bits), prepare/finalize no_dp_ep, hidden 2880 -> 3072, intermediate 2880");
  EXPECT_EQ(plan->layer_bytes.mapped.count, 0);
  EXPECT_GT(plan->layer_bytes.copied.count, 0);
}

// 13,219,200 bytes an expert: the published files' size.
TEST(PlanMoe, UnpaddedExpertsAreMapped) {
  const auto plan = plan_moe(gpt_oss(WeightFormat::kMxfp4), {}, context(Isa::kAvx2));
  ASSERT_TRUE(plan.ok());
  constexpr int64_t kBiases = (5760 + 2880) * 2;
  EXPECT_EQ(plan->layer_bytes.mapped.count, 32 * (13'219'200 + kBiases));
  EXPECT_EQ(plan->layer_bytes.copied.count, 0);
}

TEST(PlanMoe, NamesTheLatentWidthAndTheSharedExpert) {
  MoeConfig moe = gpt_oss(WeightFormat::kBf16);
  moe.latent = 1024;
  moe.shared_intermediate = 64;
  const auto plan = plan_moe(moe, {}, context(Isa::kAvx2));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_THAT(describe(*plan),
              HasSubstr("hidden 1024, intermediate 2880, latent in a model of 2880, shared expert "
                        "64"));
}

}  // namespace
}  // namespace rota
