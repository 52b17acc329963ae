// A whole model over MPI, on as many data-parallel ranks as mpirun started, experts dealt to them:
// each rank's logits are those of one process, bit for bit, and what low_latency asks of MPI for a
// step is puts and barriers alone.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "comm/mpi.h"
#include "golden/harness.h"
#include "mpi_main.h"
#include "platform/cpu.h"
#include "pmpi_trace.h"
#include "tensor/testing/golden_file.h"

namespace rota {
namespace {

using golden::Harness;
using golden::HarnessOptions;
using testing::MpiCalls;

struct Case {
  const char* pack;
  Transport transport;
};

// Steps of a prompt, then of a token each; on some of them this rank has none.
constexpr int kSteps = 4;
int64_t tokens_in(int step, int rank) {
  if (step == 0) return 3 + rank % 2;
  return (step + rank) % 3 == 0 ? 0 : 1;
}

std::vector<int32_t> ids_of(int rank) {
  std::vector<int32_t> ids;
  for (int i = 0; i < 16; ++i) ids.push_back((37 * i + 11 * rank) % 500);
  return ids;
}

HarnessOptions options_on(const RankContext& ranks) {
  HarnessOptions options;
  options.kernels = available_kernels(detect_cpu()).front();
  options.compute = Compute::kBf16;
  options.threads = 1;
  options.max_batch_tokens = 16;
  options.max_model_len = 64;
  options.pages = 8;
  options.ranks = ranks;
  return options;
}

std::unique_ptr<Harness> load(const Case& c, const RankContext& ranks) {
  auto harness =
      Harness::load(testing::golden_path(std::string("models/") + c.pack), options_on(ranks));
  ROTA_CHECK(harness.ok(), harness.status().message());
  return std::move(harness).value();
}

// All logits of this rank's sequence.
std::vector<float> run(Harness& harness, const RankContext& ranks, int rank) {
  const std::vector<int32_t> ids = ids_of(rank);
  const int sequence = harness.new_sequence();
  std::vector<float> all;
  size_t first = 0;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<int64_t> tokens;
    for (int r = 0; r < ranks.shape().dp; ++r) tokens.push_back(tokens_in(step, r));
    const auto count = static_cast<size_t>(tokens_in(step, rank));
    const Harness::Piece piece{sequence, std::span(ids).subspan(first, count)};
    // Alone there is no step without a token.
    if (count == 0 && ranks.shape().dp == 1) continue;
    const auto found = harness.step(std::span(&piece, count > 0 ? 1 : 0), tokens);
    ROTA_CHECK(found.ok(), found.status().message());
    all.insert(all.end(), found->all_logits().begin(), found->all_logits().end());
    first += count;
  }
  return all;
}

class ModelOverMpi : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Packs, ModelOverMpi,
                         ::testing::Values(Case{"gptoss-mxfp4-h160", Transport::kLowLatency},
                                           Case{"nemotron-nvfp4-h112", Transport::kLowLatency},
                                           Case{"gptoss-mxfp4-h160", Transport::kAlltoallv},
                                           Case{"mixtral-bf16-h72",
                                                Transport::kAllgatherReducescatter}));

TEST_P(ModelOverMpi, HasTheBitsOfOneProcessAndLowLatencyMakesNoAllToAll) {
  const Case& c = GetParam();
  const auto world = testing::mpi_world();
  const int ranks = world->ranks(), rank = world->rank();
  if (ranks == 1) return;
  const RankContext context{
      .world = world.get(),
      .tensor = &loopback(),
      .parallel = {.shape = {.dp = ranks, .tp = 1, .expert_parallel = true, .rank = rank},
                   .transport = c.transport}};
  const auto harness = load(c, context);
  const MpiCalls before = testing::mpi_calls();
  const std::vector<float> found = run(*harness, context, rank);
  const MpiCalls after = testing::mpi_calls();
  ASSERT_TRUE(world->barrier().ok());

  if (c.transport == Transport::kLowLatency) {
    EXPECT_EQ(after.all_to_all, before.all_to_all);
    EXPECT_EQ(after.gathers, before.gathers);
    EXPECT_GT(after.puts, before.puts);
    EXPECT_GT(after.barriers, before.barriers);
  } else {  // the trace sees one where there is one
    EXPECT_GT(after.all_to_all, before.all_to_all);
    EXPECT_EQ(after.puts, before.puts);
  }
  EXPECT_EQ(after.reductions, before.reductions);

  const auto alone = load(c, {});
  const std::vector<float> expected = run(*alone, {}, rank);
  ASSERT_EQ(found.size(), expected.size());
  EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace rota

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return rota::testing::run_tests_on_ranks();
}
