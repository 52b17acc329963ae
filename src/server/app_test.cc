#include "server/app.h"

#include <gmock/gmock.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <nlohmann/json.hpp>

#include "server/counted_allocations.h"

namespace rota {
namespace {

using ::testing::HasSubstr;

// Ready, and refuses to run anything.
class IdleEngine final : public EngineClient {
 public:
  EngineState state() const override { return EngineState::kReady; }
  double seconds_since_heartbeat() const override { return 0; }
  Result<EngineInfo> info() const override {
    EngineInfo info;
    info.vocab_size = 300;
    info.max_model_len = info.kv_tokens = info.max_sequence_tokens = 1000;
    info.max_num_seqs = info.max_waiting = 10;
    return info;
  }
  Status submit(EngineRequest, OutputFn) override {
    ++submitted;
    return error(StatusCode::kUnavailable, "this engine runs nothing");
  }
  void cancel(std::string_view) override {}
  EngineStats stats() const override { return {}; }

  int submitted = 0;
};

class Recorder final : public HttpExchange {
 public:
  awaitable<void> respond(HttpResponse answer) override {
    response = std::move(answer);
    answered = true;
    co_return;
  }
  awaitable<void> begin_stream(HttpHeaders) override { co_return; }
  awaitable<bool> send_event(std::string_view) override { co_return true; }
  awaitable<void> end_stream() override { co_return; }
  void on_client_gone(std::function<void()> callback) override {
    if (leaves_at_once) callback();
  }
  bool client_gone() const override { return leaves_at_once; }

  bool leaves_at_once = false;
  bool answered = false;
  HttpResponse response;
};

// Every byte is a token: a prompt of n bytes has n tokens.
std::shared_ptr<const Tokenizer> bytes_tokenizer() {
  OrderedJson vocabulary = OrderedJson::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[fmt::format("<0x{:02X}>", byte)] = byte;
  const OrderedJson file = {{"version", "1.0"},
                            {"added_tokens", OrderedJson::array()},
                            {"normalizer", nullptr},
                            {"pre_tokenizer", nullptr},
                            {"post_processor", nullptr},
                            {"decoder", {{"type", "ByteFallback"}}},
                            {"model",
                             {{"type", "BPE"},
                              {"byte_fallback", true},
                              {"unk_token", nullptr},
                              {"vocab", vocabulary},
                              {"merges", OrderedJson::array()}}}};
  auto loaded = Tokenizer::from_json(file.dump(), "tokenizer.json");
  EXPECT_TRUE(loaded.ok()) << loaded.status().message();
  return *loaded;
}

class ServerAppTest : public ::testing::Test {
 protected:
  // Runs the request to its end with this thread as the server's; returns the bytes that it
  // allocated.
  size_t post(const std::string& path, const OrderedJson& body, Recorder& exchange) {
    HttpRequest request;
    request.method = "POST";
    request.path = path;
    request.headers = {{"content-type", "application/json"}};
    request.body = body.dump();
    const size_t before = test::bytes_allocated();
    boost::asio::co_spawn(
        io_, [&]() -> awaitable<void> { co_await app_.handle(std::move(request), exchange); },
        boost::asio::detached);
    io_.restart();
    io_.run();
    return test::bytes_allocated() - before;
  }

  boost::asio::io_context io_{1};
  IdleEngine engine_;
  ServerApp app_{io_,
                 engine_,
                 {.tokenizer = bytes_tokenizer(), .chat = {}, .chat_problem = {}},
                 {.model_names = {"demo"}}};
};

TEST_F(ServerAppTest, LargeAnswersAreMadeAwayFromTheServersThread) {
  constexpr size_t kTokens = 1 << 20, kLittle = 100'000;
  Recorder tokens;
  EXPECT_LT(post("/tokenize", {{"prompt", std::string(kTokens, 'a')}}, tokens), kLittle);
  EXPECT_EQ(tokens.response.status, 200);
  EXPECT_GT(tokens.response.body.size(), 3 * kTokens);

  const OrderedJson ids(kTokens, OrderedJson(0x61));
  Recorder text;
  EXPECT_LT(post("/detokenize", {{"tokens", ids}}, text), kLittle);
  EXPECT_EQ(text.response.status, 200);
  EXPECT_GT(text.response.body.size(), kTokens);
}

TEST_F(ServerAppTest, PromptsThatCannotFitAreRefusedWithoutBeingEncoded) {
  // Longer than what is ever encoded: the answer would be about that, had it been tried.
  const std::string huge(Tokenizer::kMaxTextBytes + 1, 'a');
  Recorder exchange;
  post("/v1/completions", {{"prompt", huge}}, exchange);
  EXPECT_EQ(exchange.response.status, 400);
  EXPECT_THAT(exchange.response.body, HasSubstr("context_length_exceeded"));
  EXPECT_THAT(exchange.response.body, HasSubstr("maximum context length is 1000 tokens"));
  EXPECT_EQ(engine_.submitted, 0);
}

TEST_F(ServerAppTest, PromptsThatFitReachTheEngine) {
  Recorder exchange;
  post("/v1/completions", {{"prompt", std::string(900, 'a')}, {"max_tokens", 100}}, exchange);
  EXPECT_EQ(engine_.submitted, 1) << exchange.response.body;
}

TEST_F(ServerAppTest, NoMorePromptsAreEncodedForAClientThatHasGone) {
  Recorder exchange;
  exchange.leaves_at_once = true;
  // The first prompt would be refused, if it were looked at.
  post("/v1/completions", {{"prompt", {std::string(5000, 'a'), "b"}}}, exchange);
  EXPECT_FALSE(exchange.answered);
  EXPECT_EQ(engine_.submitted, 0);
}

}  // namespace
}  // namespace rota
