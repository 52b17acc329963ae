// Same answer (design, section 6): a request's logits are the same bits alone or in a batch,
// however its prefill is cut, and whatever width a backend rounds up to.
#include <gtest/gtest.h>

#include "golden/cases.h"
#include "golden/compare.h"
#include "golden/golden_pack.h"

namespace rota::golden {
namespace {

std::string case_name(const ::testing::TestParamInfo<Case>& info) { return info.param.name(); }

std::vector<Case> both_precisions() {
  std::vector<Case> cases = pack_cases(Compute::kFloat32);
  for (Case& c : pack_cases(Compute::kBf16)) cases.push_back(std::move(c));
  return cases;
}

class SameAnswer : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    auto pack = GoldenPack::open(small_pack_dir(GetParam().pack));
    ASSERT_TRUE(pack.ok()) << pack.status().message();
    pack_.emplace(std::move(pack).value());
    auto harness = Harness::load(pack_->model_dir, GetParam().options());
    ASSERT_TRUE(harness.ok()) << harness.status().message();
    harness_ = std::move(harness).value();
  }

  const Prompt& prompt(std::string_view name) const {
    for (const Prompt& prompt : pack_->prompts) {
      if (prompt.name == name) return prompt;
    }
    ROTA_CHECK(false, name);
  }

  std::optional<GoldenPack> pack_;
  std::unique_ptr<Harness> harness_;
};

TEST_P(SameAnswer, HoweverThePrefillIsCut) {
  const std::vector<int32_t>& ids = prompt("p150").ids;
  const auto whole = harness_->run_alone(ids, std::ssize(ids));
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  for (const int64_t chunk : {1, 16, 64}) {
    const auto cut = harness_->run_alone(ids, chunk);
    ASSERT_TRUE(cut.ok()) << cut.status().message();
    EXPECT_TRUE(same_bits(*cut, *whole)) << "chunks of " << chunk;
  }
}

// One sequence of interest among seven others of other lengths: prefill in a mixed batch, then
// decode steps in which the others come in another order.
TEST_P(SameAnswer, AloneAndAmongSevenOthers) {
  const Prompt& chosen = prompt("b12");
  const int64_t steps = 3;
  std::vector<int32_t> ids = chosen.ids;
  ids.insert(ids.end(), chosen.greedy.begin(), chosen.greedy.begin() + steps);
  const auto alone = harness_->run_alone(ids, std::ssize(ids));
  ASSERT_TRUE(alone.ok()) << alone.status().message();

  std::vector<std::vector<int32_t>> texts{
      prompt("p150").ids, prompt("b5").ids, prompt("p7").ids,    chosen.ids,
      prompt("b33").ids,  prompt("p1").ids, prompt("p7").greedy, prompt("b33").greedy};
  const size_t place = 3;
  std::vector<Harness::Piece> pieces;
  int64_t first_row = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i == place) first_row = 0;
    pieces.push_back({harness_->new_sequence(), texts[i]});
  }
  for (size_t i = 0; i < place; ++i) first_row += std::ssize(texts[i]);
  const auto prefill = harness_->step(pieces);
  ASSERT_TRUE(prefill.ok()) << prefill.status().message();
  std::vector<float> found;
  for (int64_t row = 0; row < std::ssize(chosen.ids); ++row) {
    const auto logits = prefill->logits(first_row + row);
    found.insert(found.end(), logits.begin(), logits.end());
  }
  for (int64_t step = 0; step < steps; ++step) {
    for (Harness::Piece& piece : pieces) {
      piece.ids = std::span(chosen.greedy).subspan(static_cast<size_t>(step), 1);
    }
    std::rotate(pieces.begin(), pieces.begin() + 1, pieces.end());
    const auto row = std::ssize(pieces) + static_cast<int64_t>(place) - 1 - step;
    const auto decode = harness_->step(pieces);
    ASSERT_TRUE(decode.ok()) << decode.status().message();
    const auto logits = decode->logits(row % std::ssize(pieces));
    found.insert(found.end(), logits.begin(), logits.end());
  }
  EXPECT_TRUE(same_bits(found, *alone));
}

// Far beyond the window of 128: layers that slide give their pages back, and only those.
TEST_P(SameAnswer, WithThePagesBehindAWindowGone) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 400; ++i) {
    ids.push_back((i * 7919 + 13) % static_cast<int32_t>(harness_->config().vocab));
  }
  const auto whole = harness_->run_alone(ids, std::ssize(ids));
  ASSERT_TRUE(whole.ok()) << whole.status().message();

  const int sequence = harness_->new_sequence();
  std::vector<float> found;
  for (size_t first = 0; first < ids.size(); first += 40) {
    const auto step = harness_->step(sequence, std::span(ids).subspan(first, 40));
    ASSERT_TRUE(step.ok()) << step.status().message();
    found.insert(found.end(), step->all_logits().begin(), step->all_logits().end());
  }
  EXPECT_TRUE(same_bits(found, *whole));
  // Blocks of the last step's first window on: positions 360 - 127 to 399.
  const int64_t blocks = 7;
  const int64_t window_blocks = 4;
  const bool slides = harness_->model().kv_spec().groups.size() == 2;
  EXPECT_EQ(harness_->pages_in_use(), blocks + (slides ? window_blocks : 0));
}

INSTANTIATE_TEST_SUITE_P(Packs, SameAnswer, ::testing::ValuesIn(both_precisions()), case_name);

INSTANTIATE_TEST_SUITE_P(Int8, SameAnswer, ::testing::ValuesIn(sampled(int8_cases(), 6)),
                         case_name);

class Padding : public ::testing::TestWithParam<Case> {};

TEST_P(Padding, LeavesNoTraceInAnyBit) {
  const Case& padded = GetParam();
  const auto pack = GoldenPack::open(small_pack_dir(padded.pack));
  ASSERT_TRUE(pack.ok()) << pack.status().message();
  Case plain = padded;
  plain.moe.hidden_alignment = plain.moe.intermediate_alignment = 0;
  std::vector<std::vector<float>> logits;
  std::vector<int64_t> copied;
  for (const Case& c : {plain, padded}) {
    const auto harness = Harness::load(pack->model_dir, c.options());
    ASSERT_TRUE(harness.ok()) << harness.status().message();
    std::vector<float> all;
    for (const Prompt& prompt : pack->prompts) {
      const auto run = (*harness)->run_alone(prompt.teacher_forced(), 512);
      ASSERT_TRUE(run.ok()) << run.status().message();
      all.insert(all.end(), run->begin(), run->end());
    }
    logits.push_back(std::move(all));
    copied.push_back((*harness)->model().copied_bytes());
  }
  EXPECT_TRUE(same_bits(logits[0], logits[1]));
  // No width of these packs is a multiple of any alignment asked for: the run was padded.
  EXPECT_GT(copied[1], copied[0]);
}

INSTANTIATE_TEST_SUITE_P(Grid, Padding, ::testing::ValuesIn(padding_cases(16)), case_name);

}  // namespace
}  // namespace rota::golden
