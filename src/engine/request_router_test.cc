#include "engine/request_router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/loopback.h"
#include "engine/engine_stats.h"
#include "engine/random.h"
#include "engine/wire.h"

namespace rota {
namespace {

using ::testing::ElementsAre;

// A router over dp groups of tp ranks. What it sends can be read.
class Router {
 public:
  Router(int dp, int tp)
      : ranks_(dp * tp),
        loopback_(ranks_),
        router_(desk_, {.groups = dp, .tp = tp, .engine_seed = 9}) {
    EngineInfo info;
    info.vocab_size = 1000;
    info.max_model_len = info.max_sequence_tokens = 4096;
    info.max_num_seqs = info.max_waiting = 100;
    desk_.open(info);
  }

  void submit(const std::string& id, int64_t prompt_tokens) {
    EngineRequest request;
    request.id = id;
    request.prompt = std::vector<int32_t>(static_cast<size_t>(prompt_tokens), 1);
    const Status status = desk_.submit(std::move(request), [this](const RequestOutput& output) {
      for (const OutputToken& token : output.tokens) {
        heard_.push_back(output.id + ":" + std::to_string(token.id));
      }
    });
    EXPECT_TRUE(status.ok()) << status.message();
  }
  void cancel(const std::string& id) { desk_.cancel(id); }

  // What each rank is told: "+id", "-id".
  std::vector<std::string> route() {
    std::vector<RequestDesk::Command> commands;
    desk_.take(commands);
    RankMessages messages(loopback_.communicator(0));
    for (RequestDesk::Command& command : commands) router_.route(command, messages);
    std::vector<std::string> told(static_cast<size_t>(ranks_));
    for (size_t rank = 0; rank < told.size(); ++rank) told[rank] = read(messages, rank);
    return told;
  }

  void answer(const std::string& id, int32_t token, bool last) {
    RequestOutput output;
    output.id = id;
    output.tokens.push_back({.id = token});
    if (last) output.finish_reason = FinishReason::kLength;
    router_.deliver(output);
  }

  RequestRouter& operator*() { return router_; }
  std::vector<std::string> heard_;
  std::vector<int64_t> seeds_;

 private:
  std::string read(const RankMessages& messages, size_t rank) {
    wire::FrameReader reader;
    reader.append(messages.frames_to(static_cast<int>(rank)));
    std::string told;
    while (const auto message = reader.next().value()) {
      if (const auto* submit = std::get_if<wire::Submit>(&*message)) {
        told += "+" + submit->request.id;
        seeds_.push_back(*submit->request.sampling.seed);
      } else {
        told += "-" + std::get<wire::Cancel>(*message).id;
      }
    }
    return told;
  }

  int ranks_;
  LoopbackRanks loopback_;
  RequestDesk desk_;
  RequestRouter router_;
};

TEST(RequestRouter, AGroupsRanksAreToldTheSame) {
  Router router(2, 2);
  router.submit("a", 10);
  router.submit("b", 10);
  EXPECT_THAT(router.route(), ElementsAre("+a#0", "+a#0", "+b#1", "+b#1"));
  router.cancel("b");
  EXPECT_THAT(router.route(), ElementsAre("", "", "-b#1", "-b#1"));
}

TEST(RequestRouter, SeedsAreThoseThatOneRankWouldHaveDrawn) {
  Router router(3, 1);
  for (const char* id : {"a", "b", "c"}) router.submit(id, 10);
  router.route();
  EXPECT_THAT(router.seeds_, ElementsAre(static_cast<int64_t>(drawn_seed(9, 0)),
                                         static_cast<int64_t>(drawn_seed(9, 1)),
                                         static_cast<int64_t>(drawn_seed(9, 2))));
}

TEST(RequestRouter, AnswersGoToTheirClientsUnderTheirNames) {
  Router router(2, 1);
  router.submit("a", 10);
  router.submit("b", 10);
  router.route();
  router.answer("b#1", 7, false);
  router.answer("a#0", 8, true);
  router.answer("b#1", 9, true);
  router.answer("b#1", 10, true);  // nobody waits for it
  EXPECT_THAT(router.heard_, ElementsAre("b:7", "a:8", "b:9"));
}

// A client asks, leaves and asks again with the same id: what is still on its way of the first
// answer is not taken for the second.
TEST(RequestRouter, AnOldAnswerIsNotTakenForANewOne) {
  Router router(1, 1);
  router.submit("a", 10);
  router.route();
  router.cancel("a");
  router.submit("a", 10);
  router.answer("a#0", 1, false);
  EXPECT_THAT(router.route(), ElementsAre("-a#0+a#1"));
  router.answer("a#0", 2, true);
  router.answer("a#1", 3, true);
  EXPECT_THAT(router.heard_, ElementsAre("a:3"));
}

TEST(RequestRouter, LoadIsGivenBackWhenARequestIsGone) {
  Router router(2, 1);
  router.submit("long", 1000);
  router.submit("x", 10);
  EXPECT_THAT(router.route(), ElementsAre("+long#0", "+x#1"));
  router.cancel("long");
  router.submit("y", 100);
  router.submit("z", 50);
  EXPECT_THAT(router.route(), ElementsAre("-long#0+y#2", "+z#3"));
  router.answer("y#2", 1, true);
  router.submit("w", 60);
  EXPECT_THAT(router.route(), ElementsAre("+w#4", ""));
}

TEST(RequestRouter, StatisticsAreSumsOverGroups) {
  Router router(2, 2);
  for (int rank = 0; rank < 4; ++rank) {
    EngineStats stats = empty_stats();
    stats.running = 1 + rank;
    stats.kv_usage = rank < 2 ? 0.25 : 0.75;
    stats.major_faults = 10;
    stats.generation_tokens = 100;
    stats.expert_tokens = {{1, 2}, {3, rank}};
    observe(stats.decode_time, 1.0);
    stats.ranks = {{.rank = rank, .dummy_steps = 5 * rank}};
    stats.balance = {.looks = 1, .moves = 8, .imbalance = 1.5};
    (*router).note(rank, stats);
  }
  const EngineStats total = (*router).total();
  EXPECT_EQ(total.running, 1 + 3);
  EXPECT_EQ(total.kv_usage, 0.5);
  EXPECT_EQ(total.major_faults, 40);
  EXPECT_EQ(total.generation_tokens, 200);
  EXPECT_THAT(total.expert_tokens, ElementsAre(ElementsAre(2, 4), ElementsAre(6, 2)));
  EXPECT_EQ(total.decode_time.sum, 2.0);
  ASSERT_EQ(total.ranks.size(), 4u);
  EXPECT_EQ(total.ranks[3].dummy_steps, 15);
  EXPECT_EQ(total.balance.moves, 8) << "of all ranks together, whoever tells it";
}

}  // namespace
}  // namespace rota
