#include "model/step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace rota {
namespace {

using ::testing::HasSubstr;

TEST(StepLayout, TilesEndAtPageBorders) {
  const std::vector<SequenceChunk> chunks{
      {.first_row = 0, .tokens = 1, .first_position = 200, .block_tables = {}},
      {.first_row = 1, .tokens = 130, .first_position = 60, .block_tables = {}}};
  StepLayout layout(131);
  layout.set(chunks);
  std::vector<std::vector<int>> tiles;
  for (const QueryTile& tile : layout.tiles()) {
    tiles.push_back({tile.chunk, tile.begin, tile.end});
  }
  EXPECT_EQ(tiles, (std::vector<std::vector<int>>{{0, 0, 1}, {1, 0, 4}, {1, 4, 68}, {1, 68, 130}}));
  ASSERT_EQ(layout.positions().size(), 131u);
  EXPECT_EQ(layout.positions()[0], 200);
  EXPECT_EQ(layout.positions()[1], 60);
  EXPECT_EQ(layout.positions()[130], 189);
}

TEST(StepLayout, ANewStepForgetsTheLast) {
  StepLayout layout(8);
  const SequenceChunk chunk{.first_row = 0, .tokens = 8, .first_position = 0, .block_tables = {}};
  layout.set(std::span(&chunk, 1));
  layout.set(std::span(&chunk, 1));
  EXPECT_EQ(layout.tiles().size(), 1u);
  EXPECT_EQ(layout.positions().size(), 8u);
}

// A batch that keeps to everything, for a test to break: positions 191..193 of a sequence, so that
// the window of 128 begins in block 1 and the last block is 3.
struct GoodBatch {
  std::vector<int32_t> ids{1, 2, 3};
  std::vector<std::vector<int32_t>> pages{{0, 1, 2, 3}, {-1, 3, 2, 1}};  // one a group
  std::vector<int32_t> rows{2};
  SequenceChunk chunk{.first_row = 0, .tokens = 3, .first_position = 191, .block_tables = {}};

  Status check() const {
    KvSpec spec;
    spec.groups = {{.window = 0, .layers = {0}}, {.window = 128, .layers = {1}}};
    const std::vector<std::span<const int32_t>> tables(pages.begin(), pages.end());
    SequenceChunk with_tables = chunk;
    with_tables.block_tables = tables;
    return check_batch(
        {.token_ids = ids, .chunks = std::span(&with_tables, 1), .logit_rows = rows}, spec,
        {.vocab = 10, .max_tokens = 4, .max_logit_rows = 1, .max_model_len = 194, .pages = 4});
  }
};

TEST(CheckBatch, AGoodOnePasses) {
  const Status status = GoodBatch().check();
  EXPECT_TRUE(status.ok()) << status.message();
}

struct EmptyBatch {
  BatchLimits limits{.vocab = 10, .max_tokens = 4, .max_logit_rows = 1, .max_model_len = 194};
  std::vector<int64_t> tokens_of_group;
  Status check() const {
    return check_batch({.token_ids = {},
                        .chunks = {},
                        .logit_rows = {},
                        .trace = nullptr,
                        .tokens_of_group = tokens_of_group},
                       KvSpec(), limits);
  }
};

TEST(CheckBatch, NoTokensPassWithOtherRanks) {
  EmptyBatch batch;
  EXPECT_FALSE(batch.check().ok());
  batch.limits.min_tokens = 0;
  EXPECT_TRUE(batch.check().ok());
  batch.limits.groups = 3;
  batch.limits.group = 1;
  batch.tokens_of_group = {5, 0, 7};
  EXPECT_TRUE(batch.check().ok());
}

TEST(CheckBatch, ADataParallelRankHasTheTokensThatWereAnnounced) {
  EmptyBatch batch;
  batch.limits.min_tokens = 0;
  batch.limits.groups = 3;
  batch.limits.group = 2;
  batch.tokens_of_group = {5, 0};
  EXPECT_THAT(batch.check().message(), HasSubstr("tokens of 2 data-parallel ranks, expected 3"));
  batch.tokens_of_group = {5, 0, 7};
  EXPECT_THAT(batch.check().message(),
              HasSubstr("data-parallel rank 2 of 3: 0 tokens in the step, 7 were announced"));
}

struct Fault {
  const char* name;
  std::function<void(GoodBatch&)> make;
  const char* message;
};
std::ostream& operator<<(std::ostream& out, const Fault& fault) { return out << fault.name; }

class CheckBatchFault : public ::testing::TestWithParam<Fault> {};

TEST_P(CheckBatchFault, IsAnErrorThatNamesIt) {
  GoodBatch batch;
  GetParam().make(batch);
  const Status status = batch.check();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Faults, CheckBatchFault,
    ::testing::Values(
        Fault{"NoTokens", [](GoodBatch& b) { b.ids.clear(); }, "a step of 0 tokens"},
        Fault{"TooManyTokens", [](GoodBatch& b) { b.ids.resize(5); }, "a step of 5 tokens"},
        Fault{"TokenBelowZero", [](GoodBatch& b) { b.ids[1] = -1; }, "row 1: token id -1"},
        Fault{"TokenBeyondTheVocabulary", [](GoodBatch& b) { b.ids[2] = 10; },
              "row 2: token id 10, expected [0, 10)"},
        Fault{"TooManyLogitRows", [](GoodBatch& b) { b.rows = {0, 1}; }, "logits of 2 rows"},
        Fault{"LogitRowBeyondTheBatch", [](GoodBatch& b) { b.rows = {3}; }, "logits of row 3"},
        Fault{"ChunkWithoutTokens", [](GoodBatch& b) { b.chunk.tokens = 0; }, "chunk 0: rows"},
        Fault{"RowsWithAGap", [](GoodBatch& b) { b.chunk.first_row = 1; }, "chunk 0: rows"},
        Fault{"RowsWithoutChunk", [](GoodBatch& b) { b.chunk.tokens = 2; },
              "3 tokens, but chunks of 2 rows"},
        Fault{"PositionBelowZero", [](GoodBatch& b) { b.chunk.first_position = -1; },
              "chunk 0: positions -1"},
        Fault{"PositionBeyondTheLength", [](GoodBatch& b) { b.chunk.first_position = 192; },
              "chunk 0: positions 192"},
        Fault{"TableOfOneGroupMissing", [](GoodBatch& b) { b.pages.pop_back(); },
              "1 block tables, expected 2"},
        Fault{"TableTooShort", [](GoodBatch& b) { b.pages[0].resize(3); },
              "block table of 3 entries"},
        Fault{"PageFreedThatIsStillSeen", [](GoodBatch& b) { b.pages[1][1] = -1; },
              "block 1 is page -1"},
        Fault{"PageBeyondTheCache", [](GoodBatch& b) { b.pages[0][2] = 4; }, "block 2 is page 4"}),
    [](const ::testing::TestParamInfo<Fault>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace rota
