#include "engine/parallel_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rota {
namespace {

using ::testing::HasSubstr;

ParallelOptions with(int dp, int tp, bool ep, std::string all2all = "") {
  return {.tensor_parallel_size = tp,
          .data_parallel_size = dp,
          .enable_expert_parallel = ep,
          .all2all_backend = std::move(all2all)};
}

TEST(ParallelChoice, TokensMoveOnlyWhereDataParallelRanksShareExperts) {
  const auto transport = [](const ParallelOptions& options) {
    return choose_parallel(options).value().transport;
  };
  EXPECT_EQ(transport(with(1, 1, true)), Transport::kNoDpEp);
  EXPECT_EQ(transport(with(1, 8, true, "deepep_low_latency")), Transport::kNoDpEp);
  EXPECT_EQ(transport(with(8, 1, true)), Transport::kAllgatherReducescatter);
  EXPECT_EQ(transport(with(8, 1, true, "naive")), Transport::kAllgatherReducescatter);
  EXPECT_EQ(transport(with(8, 1, true, "deepep_high_throughput")), Transport::kAlltoallv);
  EXPECT_EQ(transport(with(8, 1, true, "deepep_low_latency")), Transport::kLowLatency);
  EXPECT_EQ(transport(with(8, 1, true, "nixl_ep")), Transport::kLowLatency);
  EXPECT_EQ(transport(with(2, 4, false, "low_latency")), Transport::kAllgatherReducescatter);
}

TEST(ParallelChoice, ANameOfEveryTransportIsItsOwn) {
  for (const Transport transport :
       {Transport::kAllgatherReducescatter, Transport::kAlltoallv, Transport::kLowLatency}) {
    const ParallelOptions options = with(2, 1, true, std::string(to_string(transport)));
    EXPECT_EQ(choose_parallel(options).value().transport, transport);
  }
}

TEST(ParallelChoice, AFlagThatDoesNothingIsSaid) {
  EXPECT_EQ(choose_parallel(with(8, 1, true, "pplx")).value().unused_flag, "");
  EXPECT_EQ(choose_parallel(with(8, 1, false)).value().unused_flag, "");
  const ParallelChoice cut = choose_parallel(with(8, 1, false, "pplx")).value();
  EXPECT_EQ(cut.unused_flag, "--all2all-backend pplx");
  EXPECT_THAT(cut.unused_because, HasSubstr("--enable-expert-parallel"));
  EXPECT_THAT(choose_parallel(with(1, 8, true, "naive")).value().unused_because,
              HasSubstr("one data-parallel rank"));
}

TEST(ParallelChoice, WrongWordsAndSizesNameTheFlag) {
  const auto message = [](const ParallelOptions& options) {
    return choose_parallel(options).status().message();
  };
  EXPECT_THAT(message(with(0, 1, false)), HasSubstr("--data-parallel-size: 0"));
  EXPECT_THAT(message(with(1, 1001, false)), HasSubstr("--tensor-parallel-size: 1001"));
  EXPECT_THAT(message(with(2, 1000, false)), HasSubstr("more than 1000 ranks"));
  EXPECT_THAT(message(with(2, 1, true, "carrier")), HasSubstr("\"carrier\" is none of"));
  ParallelOptions placed;
  placed.expert_placement_strategy = "random";
  EXPECT_THAT(message(placed), HasSubstr("--expert-placement-strategy"));
}

TEST(ParallelChoice, ExpertsMoveOnlyWhereNoBitDependsOnTheirPlace) {
  const auto message = [](ParallelOptions options, int64_t redundant, int64_t window = 1000) {
    options.enable_eplb = true;
    options.num_redundant_experts = redundant;
    options.eplb_window_size = window;
    return choose_parallel(options).status().message();
  };
  EXPECT_EQ(message(with(4, 1, true), 4), "");
  EXPECT_EQ(message(with(2, 2, true), 0), "");
  EXPECT_THAT(message(with(4, 1, false), 0), HasSubstr("add -ep"));
  EXPECT_THAT(message(with(1, 1, true), 0), HasSubstr("no other rank"));
  EXPECT_THAT(message(with(1, 4, true), 0), HasSubstr("rounding would change"));
  EXPECT_THAT(message(with(4, 1, true), -1), HasSubstr("--num-redundant-experts: -1"));
  EXPECT_THAT(message(with(4, 1, true), 0, 0), HasSubstr("--eplb-window-size: 0"));
  EXPECT_THAT(message(with(4, 1, true), 0, 3001), HasSubstr("3000 of --eplb-step-interval"));
  ParallelOptions never = with(4, 1, true);
  never.eplb_step_interval = 0;
  EXPECT_THAT(message(never, 0), HasSubstr("--eplb-step-interval: 0 is less than 1"));
  ParallelOptions alone = with(4, 1, true);
  alone.num_redundant_experts = 2;
  EXPECT_THAT(choose_parallel(alone).status().message(), HasSubstr("with --enable-eplb alone"));
}

TEST(ParallelChoice, ADeadlineOutOfRangeIsRefused) {
  ParallelOptions options = with(2, 1, true);
  options.rank_timeout = 0.5;
  EXPECT_THAT(choose_parallel(options).status().message(), HasSubstr("--rank-timeout: 0.5"));
  options.rank_timeout = 2;
  EXPECT_TRUE(choose_parallel(options).ok());
}

TEST(ParallelChoice, OneProcessRunsOneRankWhateverTheOtherFlagsSay) {
  const auto check = [](const ParallelOptions& options) {
    return check_one_rank("bench", options);
  };
  EXPECT_TRUE(check(with(1, 1, true)).ok());
  EXPECT_TRUE(check(with(1, 1, false, "deepep_low_latency")).ok());
  EXPECT_THAT(check(with(1, 4, false)).message(), HasSubstr("--tensor-parallel-size 4"));
  EXPECT_THAT(check(with(8, 1, true)).message(), HasSubstr("--data-parallel-size 8"));
  EXPECT_THAT(check(with(8, 1, true)).message(), HasSubstr("`rota bench`"));
}

}  // namespace
}  // namespace rota
