#include "supervisor/request_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/random.h"

namespace rota {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kPlenty = 100;

EngineRequest request_of(const std::string& id) {
  EngineRequest request;
  request.id = id;
  request.prompt = {1, 2, 3};
  request.sampling.max_tokens = 10;
  return request;
}

class Ledger : public ::testing::Test {
 protected:
  void accept(const std::string& id) { ledger_.accept(request_of(id), {}); }
  // Gives all that may be given now; their ids as clients know them.
  std::vector<std::string> give(int64_t places = kPlenty) {
    std::vector<std::string> ids;
    while (const auto next = ledger_.give_next(places)) {
      wire_ids_[next->client_id] = next->request.id;
      ids.push_back(next->client_id);
      sent_[next->client_id] = next->to_send();
    }
    return ids;
  }
  std::vector<EndedRequest> die(const std::string& how = "", int64_t max_num_seqs = kPlenty) {
    return ledger_.engine_died(how, max_num_seqs);
  }
  RequestLedger::RequestPtr tell(const std::string& id, std::vector<int32_t> tokens,
                                 FinishReason finish = FinishReason::kNone) {
    output_ = {};
    output_.id = wire_ids_[id];
    for (const int32_t token : tokens) output_.tokens.push_back({.id = token});
    output_.finish_reason = finish;
    output_.cached_tokens = 64;
    return ledger_.take(output_);
  }

  RequestLedger ledger_{7};
  std::map<std::string, std::string> wire_ids_;
  std::map<std::string, EngineRequest> sent_;
  RequestOutput output_;
};

TEST_F(Ledger, AReplayBringsWhatWasToldInOrderOfArrival) {
  accept("b");
  accept("a");
  EXPECT_THAT(give(), ElementsAre("b", "a"));
  EXPECT_TRUE(sent_["a"].generated.empty());
  EXPECT_NE(tell("a", {5}), nullptr);
  EXPECT_EQ(output_.id, "a");
  EXPECT_NE(tell("a", {6}), nullptr);
  EXPECT_TRUE(give().empty());
  EXPECT_TRUE(die("was killed").empty());
  EXPECT_EQ(ledger_.waiting(), 2);
  EXPECT_EQ(ledger_.replayed(), 0);
  EXPECT_THAT(give(), ElementsAre("b", "a"));
  EXPECT_TRUE(sent_["b"].generated.empty());
  EXPECT_EQ(sent_["a"].generated, TokenIds({5, 6}));
  EXPECT_EQ(sent_["a"].prompt, TokenIds({1, 2, 3}));
  EXPECT_EQ(ledger_.replayed(), 2);
}

TEST_F(Ledger, SeedsAreFixedWhenAcceptedAndDrawnAsTheEngineDoes) {
  accept("a");
  EngineRequest with_seed = request_of("b");
  with_seed.sampling.seed = 5;
  ledger_.accept(with_seed, {});
  accept("c");
  give();
  EXPECT_EQ(sent_["a"].sampling.seed, static_cast<int64_t>(drawn_seed(7, 0)));
  EXPECT_EQ(sent_["b"].sampling.seed, 5);
  EXPECT_EQ(sent_["c"].sampling.seed, static_cast<int64_t>(drawn_seed(7, 2)));
  const auto before = sent_["c"].sampling.seed;
  die();
  give();
  EXPECT_EQ(sent_["c"].sampling.seed, before);
}

TEST_F(Ledger, CachedTokensStayWhatTheClientWasTold) {
  accept("a");
  give();
  tell("a", {5});
  die();
  give();
  RequestOutput later;
  later.id = wire_ids_["a"];
  later.cached_tokens = 0;
  EXPECT_NE(ledger_.take(later), nullptr);
  EXPECT_EQ(later.cached_tokens, 64);
}

TEST_F(Ledger, AnEndIsTheEndAndCancelledOnesAreNotHeardOf) {
  accept("a");
  accept("b");
  give();
  EXPECT_NE(tell("a", {5}, FinishReason::kStop), nullptr);
  EXPECT_FALSE(ledger_.contains("a"));
  EXPECT_EQ(tell("a", {5}), nullptr);
  EXPECT_NE(ledger_.remove("b"), nullptr);
  EXPECT_EQ(ledger_.remove("b"), nullptr);
  accept("b");  // the name is free; the old one's outputs do not reach it
  EXPECT_EQ(tell("b", {5}), nullptr);
  EXPECT_EQ(ledger_.size(), 1);
  EXPECT_EQ(ledger_.waiting(), 1);
}

TEST_F(Ledger, TheLastWordOfAnEngineThatEndsIsNotTold) {
  accept("a");
  give();
  output_ = {};
  output_.id = wire_ids_["a"];
  output_.finish_reason = FinishReason::kError;
  output_.status = error(StatusCode::kUnavailable, "the engine was stopped");
  EXPECT_EQ(ledger_.take(output_), nullptr);
  EXPECT_TRUE(ledger_.contains("a"));
}

TEST_F(Ledger, AnEngineWithFewerPlacesIsGivenTheRestLater) {
  for (const char* id : {"a", "b", "c"}) accept(id);
  EXPECT_EQ(give().size(), 3u);
  die();
  EXPECT_THAT(give(2), ElementsAre("a", "b"));
  EXPECT_TRUE(give(2).empty());
  tell("a", {5}, FinishReason::kLength);
  EXPECT_THAT(give(2), ElementsAre("c"));
}

TEST_F(Ledger, TheOneThatKillsTheEngineEndsAlone) {
  for (const char* id : {"good", "bad", "other"}) accept(id);
  give();
  EXPECT_TRUE(die().empty());
  EXPECT_EQ(give().size(), 3u);
  EXPECT_TRUE(die().empty());
  // Now each is given alone until it has said something.
  EXPECT_THAT(give(), ElementsAre("good"));
  accept("new");
  EXPECT_TRUE(give().empty());
  tell("good", {5});
  EXPECT_THAT(give(), ElementsAre("bad"));
  const std::vector<EndedRequest> ended = die("was killed by signal 11");
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].request->client_id, "bad");
  EXPECT_EQ(ended[0].status.code(), StatusCode::kInternal);
  EXPECT_THAT(ended[0].status.message(), HasSubstr("died 3 times in a row"));
  EXPECT_THAT(ended[0].status.message(), HasSubstr("signal 11"));
  EXPECT_THAT(give(), ElementsAre("other"));
  tell("other", {5});
  EXPECT_THAT(give(), ElementsAre("good", "new"));
}

// One computed at a time: the other has not begun in any of the lives.
TEST_F(Ledger, ThoseThatHadNotBegunAreNotSuspected) {
  accept("later");
  EngineRequest first = request_of("first");
  first.priority = -1;
  ledger_.accept(first, {});
  for (int life = 0; life < 2; ++life) {
    EXPECT_EQ(give().size(), 2u);
    EXPECT_TRUE(die("", 1).empty());
  }
  EXPECT_THAT(give(), ElementsAre("first"));
  tell("first", {5});
  EXPECT_THAT(give(), ElementsAre("later"));
  EXPECT_TRUE(die("", 1).empty());
  for (int life = 0; life < 2; ++life) {
    EXPECT_EQ(give().size(), 2u);
    tell("first", {5});
    EXPECT_TRUE(die("", 1).empty());
  }
}

TEST_F(Ledger, DeathsWithTokensInBetweenAreNotInARow) {
  accept("a");
  for (int life = 0; life < 10; ++life) {
    give();
    tell("a", {5});
    EXPECT_TRUE(die().empty());
  }
  give();
  EXPECT_EQ(sent_["a"].generated.size(), 10u);
}

TEST_F(Ledger, DeathsWithoutItDoNotCount) {
  accept("a");
  for (int life = 0; life < 10; ++life) EXPECT_TRUE(die().empty());
  EXPECT_THAT(give(), ElementsAre("a"));
}

TEST_F(Ledger, WhatANewEngineHasNoRoomForEnds) {
  accept("small");
  EngineRequest large = request_of("large");
  large.sampling.max_tokens = 500;
  ledger_.accept(large, {});
  EngineInfo info;
  info.vocab_size = 100;
  info.max_model_len = 1000;
  info.max_sequence_tokens = 1000;
  EXPECT_TRUE(ledger_.remove_unfit(info).empty());
  info.max_sequence_tokens = 128;
  const std::vector<EndedRequest> ended = ledger_.remove_unfit(info);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].request->client_id, "large");
  EXPECT_THAT(ended[0].status.message(), HasSubstr("started again with less room"));
  EXPECT_THAT(ended[0].status.message(), HasSubstr("holds 128 tokens"));
  EXPECT_THAT(give(), ElementsAre("small"));
}

}  // namespace
}  // namespace rota
