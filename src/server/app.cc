#include "server/app.h"

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <random>

#include "base/log.h"
#include "platform/clock.h"
#include "server/api/json_fields.h"
#include "server/embedded_file.h"
#include "server/generation.h"
#include "server/http/errors.h"
#include "server/json_response.h"
#include "server/offload.h"
#include "server/prompt.h"
#include "server/topology_json.h"

namespace rota {

namespace asio = boost::asio;

namespace {

constexpr const char* kVersion = "0.1.0";

std::string new_id(const char* prefix) {
  static thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{}-{:016x}{:016x}", prefix, random(), random());
}

HttpResponse method_not_allowed(std::string_view allowed) {
  HttpResponse response =
      error_response(405, fmt::format("Use {} here.", allowed), "invalid_request_error");
  response.headers.emplace_back("Allow", std::string(allowed));
  return response;
}

std::string_view content_type_of(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  return "application/octet-stream";
}

}  // namespace

Result<ModelText> load_model_text(const std::filesystem::path& model_dir) {
  ModelText text;
  ROTA_ASSIGN_OR_RETURN(text.tokenizer, Tokenizer::load(model_dir / "tokenizer.json"));
  Result<std::unique_ptr<ChatFormat>> chat = ChatFormat::load(model_dir, text.tokenizer);
  if (chat.ok()) {
    text.chat = *std::move(chat);
  } else if (chat.status().code() == StatusCode::kUnsupported) {
    text.chat_problem = chat.status();
    log::warning("no chat: {}", chat.status().message());
  } else {
    return chat.status();
  }
  return text;
}

ServerApp::ServerApp(asio::io_context& io, EngineClient& engine, ModelText text,
                     ServerOptions options)
    : io_(io),
      engine_(engine),
      text_(std::move(text)),
      options_(std::move(options)),
      access_(options_.access),
      metrics_(options_.model_names.front()),
      created_(unix_seconds()) {}

ServerApp::~ServerApp() { pool_.join(); }

void ServerApp::start_draining() { draining_ = true; }

namespace {

// A request that is being answered, from its first byte on: a server that drains waits for it.
class RunningRequest {
 public:
  explicit RunningRequest(int64_t& count) : count_(count) { ++count_; }
  ~RunningRequest() { --count_; }
  RunningRequest(const RunningRequest&) = delete;
  RunningRequest& operator=(const RunningRequest&) = delete;

 private:
  int64_t& count_;
};

// Counts what was answered, whoever answered, and adds the headers that every answer has.
class CountedExchange final : public HttpExchange {
 public:
  CountedExchange(HttpExchange& inner, Metrics& metrics, HttpHeaders always)
      : inner_(inner), metrics_(metrics), always_(std::move(always)) {}
  awaitable<void> respond(HttpResponse response) override {
    metrics_.http_request(response.status);
    response.headers.insert(response.headers.end(), always_.begin(), always_.end());
    co_await inner_.respond(std::move(response));
  }
  awaitable<void> begin_stream(HttpHeaders headers) override {
    metrics_.http_request(200);
    headers.insert(headers.end(), always_.begin(), always_.end());
    co_await inner_.begin_stream(std::move(headers));
  }
  awaitable<bool> send_event(std::string_view event) override { return inner_.send_event(event); }
  awaitable<void> end_stream() override { return inner_.end_stream(); }
  void on_client_gone(std::function<void()> callback) override {
    inner_.on_client_gone(std::move(callback));
  }
  bool client_gone() const override { return inner_.client_gone(); }

 private:
  HttpExchange& inner_;
  Metrics& metrics_;
  HttpHeaders always_;
};

// Whether the client has left, for a thread that works for it.
std::shared_ptr<const std::atomic<bool>> watch_client(HttpExchange& exchange) {
  auto gone = std::make_shared<std::atomic<bool>>(false);
  exchange.on_client_gone([gone] { *gone = true; });
  return gone;
}

}  // namespace

awaitable<void> ServerApp::handle(HttpRequest request, HttpExchange& exchange) {
  CountedExchange counted(exchange, metrics_, access_.cors_headers(request));
  const RunningRequest running(running_);
  std::optional<HttpResponse> refused = access_.intercept(request);
  if (refused) {
    co_await counted.respond(*std::move(refused));
  } else {
    co_await route(request, counted);
  }
}

awaitable<void> ServerApp::route(HttpRequest& request, HttpExchange& exchange) {
  const std::string& path = request.path;
  const bool is_post = request.method == "POST";
  const bool is_get = request.method == "GET" || request.method == "HEAD";
  constexpr std::array kPosts = {"/v1/completions", "/v1/chat/completions", "/tokenize",
                                 "/detokenize"};
  if (std::find(kPosts.begin(), kPosts.end(), path) != kPosts.end()) {
    if (!is_post) {
      co_await exchange.respond(method_not_allowed("POST"));
    } else if (path == "/v1/completions") {
      co_await completions(request, exchange);
    } else if (path == "/v1/chat/completions") {
      co_await chat_completions(request, exchange);
    } else {
      HttpResponse response;
      if (path == "/tokenize") {
        response = co_await tokenize(request);
      } else {
        response = co_await detokenize(request);
      }
      co_await exchange.respond(std::move(response));
    }
    co_return;
  }
  constexpr std::string_view kModelPrefix = "/v1/models/";
  constexpr std::string_view kPagePrefix = "/page/";
  HttpResponse response;
  if (path == "/v1/models") {
    response = models();
  } else if (path.starts_with(kModelPrefix)) {
    response = model(std::string_view(path).substr(kModelPrefix.size()));
  } else if (path == "/health" || path == "/ready") {
    response = health();
  } else if (path == "/metrics") {
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = metrics_.page(engine_.stats());
  } else if (path == "/version") {
    response = json_response({{"version", kVersion}});
  } else if (path == "/rota/info") {
    response = info();
  } else if (path == "/v1/rota/topology") {
    response = topology();
  } else if (path == "/tokenizer_info") {
    response = tokenizer_info();
  } else if (path == "/") {
    response = page_file("index.html");
  } else if (path.starts_with(kPagePrefix)) {
    response = page_file(std::string_view(path).substr(kPagePrefix.size()));
  } else {
    response = error_response(404, "There is no such route; the API is under /v1, the page at /.",
                              "invalid_request_error");
  }
  if (response.status == 200 && !is_get) response = method_not_allowed("GET");
  co_await exchange.respond(std::move(response));
}

Status ServerApp::ready_for(const ApiRequest& request) const {
  if (draining_)
    return error(StatusCode::kUnavailable,
                 "The server is shutting down and takes no new requests.");
  const auto& names = options_.model_names;
  if (!request.model.empty() &&
      std::find(names.begin(), names.end(), request.model) == names.end()) {
    return error(StatusCode::kNotFound, "The model `{}` does not exist; this server serves `{}`.",
                 request.model.substr(0, 200), names.front());
  }
  switch (engine_.state()) {
    case EngineState::kReady:
    case EngineState::kRestarting:  // they wait for it there
      return {};
    case EngineState::kLoading:
      return error(StatusCode::kUnavailable, "The model is still loading; try again in a moment.");
    case EngineState::kDraining:
      return error(StatusCode::kUnavailable,
                   "The server is shutting down and takes no new requests.");
    case EngineState::kFailed:
      return error(StatusCode::kUnavailable,
                   "The engine cannot be started; the server's log says why.");
  }
  return {};
}

namespace {

HttpResponse not_found_or(const Status& status) {
  HttpResponse response = error_response(status);
  if (status.code() == StatusCode::kNotFound) {
    response =
        error_response(404, status.message(), "invalid_request_error", "model", "model_not_found");
  }
  return response;
}

}  // namespace

awaitable<void> ServerApp::completions(HttpRequest& http, HttpExchange& exchange) {
  struct Prepared {
    ApiRequest request;
    std::vector<TokenIds> prompts;
  };
  const auto gone = watch_client(exchange);
  auto prepared = co_await offload(pool_, [&]() -> Result<Prepared> {
    Prepared out;
    ROTA_ASSIGN_OR_RETURN(const OrderedJson body, parse_request_json(http.body));
    ROTA_ASSIGN_OR_RETURN(out.request, parse_completion_request(body, options_.sampling_defaults));
    ROTA_RETURN_IF_ERROR(ready_for(out.request));
    ROTA_ASSIGN_OR_RETURN(const EngineInfo engine, engine_.info());
    const LengthCheck check_length = length_check(out.request, engine);
    for (const PromptText& prompt : out.request.prompts) {
      if (*gone) return error(StatusCode::kCancelled, "The client has gone.");
      ROTA_ASSIGN_OR_RETURN(
          std::vector<int32_t> ids,
          encode_prompt(*text_.tokenizer, prompt, out.request.add_special_tokens, check_length));
      if (ids.empty())
        return invalid_argument("prompt: is empty: there must be at least one token");
      out.prompts.emplace_back(std::move(ids));
      ROTA_RETURN_IF_ERROR(check_prompt(out.request, out.prompts.back(), engine));
    }
    return out;
  });
  if (prepared.status().code() == StatusCode::kCancelled) co_return;  // nobody is there
  if (!prepared.ok()) {
    co_await exchange.respond(not_found_or(prepared.status()));
    co_return;
  }
  Generation generation;
  generation.id = new_id("cmpl");
  generation.object = generation.chunk_object = "text_completion";
  generation.model = options_.model_names.front();
  generation.created = unix_seconds();
  generation.request = std::move(prepared->request);
  generation.prompts = std::move(prepared->prompts);
  const ChoiceContext context{&generation.request, text_.tokenizer, top_k()};
  for (const auto& prompt : generation.prompts) {
    for (int64_t i = 0; i < generation.request.n; ++i) {
      const auto index = static_cast<int64_t>(generation.choices.size());
      generation.choices.push_back(make_completion_choice(context, index, prompt));
    }
  }
  co_await generate(generation, exchange);
}

awaitable<void> ServerApp::chat_completions(HttpRequest& http, HttpExchange& exchange) {
  struct Prepared {
    ApiRequest request;
    ChatPrompt prompt;
    TokenIds ids;  // of the prompt
  };
  auto prepared = co_await offload(pool_, [&]() -> Result<Prepared> {
    Prepared out;
    ROTA_ASSIGN_OR_RETURN(const OrderedJson body, parse_request_json(http.body));
    ROTA_ASSIGN_OR_RETURN(out.request, parse_chat_request(body, options_.sampling_defaults));
    ROTA_RETURN_IF_ERROR(ready_for(out.request));
    if (!text_.chat) return text_.chat_problem;
    if (!out.request.tools.is_null() && out.request.tool_choice != "none" &&
        text_.chat->name() != "harmony") {
      return invalid_argument(
          "tools: tool calls are served for harmony models only; leave tools out");
    }
    ROTA_ASSIGN_OR_RETURN(const EngineInfo engine, engine_.info());
    ChatRequest chat = chat_of(out.request);
    chat.check_length = length_check(out.request, engine);
    ROTA_ASSIGN_OR_RETURN(out.prompt, text_.chat->render(chat));
    out.ids = out.prompt.ids;
    ROTA_RETURN_IF_ERROR(check_prompt(out.request, out.ids, engine));
    return out;
  });
  if (!prepared.ok()) {
    co_await exchange.respond(not_found_or(prepared.status()));
    co_return;
  }
  Generation generation;
  generation.id = new_id("chatcmpl");
  generation.object = "chat.completion";
  generation.chunk_object = "chat.completion.chunk";
  generation.chat = true;
  generation.model = options_.model_names.front();
  generation.created = unix_seconds();
  generation.request = std::move(prepared->request);
  generation.chat_prompt = std::move(prepared->prompt);
  generation.prompts.push_back(std::move(prepared->ids));

  ApiRequest& request = generation.request;
  const auto prompt_tokens = static_cast<int64_t>(generation.chat_prompt.ids.size());
  request.sampling.max_tokens =
      request.max_tokens.value_or(std::max<int64_t>(1, max_model_len() - prompt_tokens));
  const std::vector<int32_t> stops = text_.chat->stop_token_ids();
  request.sampling.stop_token_ids.insert(request.sampling.stop_token_ids.end(), stops.begin(),
                                         stops.end());
  const ChoiceContext context{&request, text_.tokenizer, top_k()};
  for (int64_t i = 0; i < request.n; ++i) {
    generation.choices.push_back(make_chat_choice(context, i, *text_.chat, generation.chat_prompt));
  }
  co_await generate(generation, exchange);
}

int64_t ServerApp::top_k() const {
  const Result<EngineInfo> info = engine_.info();
  return info.ok() ? info->top_k : 0;
}

int64_t ServerApp::max_model_len() const {
  const Result<EngineInfo> info = engine_.info();
  return info.ok() ? info->max_model_len : 0;
}

HttpResponse ServerApp::models() const {
  OrderedJson list = OrderedJson::array();
  for (const std::string& name : options_.model_names) list.push_back(model_json(name));
  return json_response({{"object", "list"}, {"data", std::move(list)}});
}

HttpResponse ServerApp::model(std::string_view name) const {
  const auto& names = options_.model_names;
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    return error_response(
        404, fmt::format("The model does not exist; this server serves `{}`.", names.front()),
        "invalid_request_error", "model", "model_not_found");
  }
  return json_response(model_json(std::string(name)));
}

OrderedJson ServerApp::model_json(const std::string& name) const {
  return {{"id", name},
          {"object", "model"},
          {"created", created_},
          {"owned_by", "rota"},
          {"root", options_.model_names.front()},
          {"parent", nullptr},
          {"max_model_len", max_model_len()}};
}

HttpResponse ServerApp::health() const {
  static const ApiRequest kAny;
  Status ready = ready_for(kAny);
  if (ready.ok() && engine_.state() == EngineState::kRestarting) {
    ready = error(StatusCode::kUnavailable, "The engine is being restarted; requests wait for it.");
  }
  if (ready.ok() && engine_.seconds_since_heartbeat() > options_.health_timeout) {
    ready = error(StatusCode::kUnavailable, "The engine has not finished a step for {:.0f} s.",
                  engine_.seconds_since_heartbeat());
  }
  return ready.ok() ? json_response({{"status", "ok"}}) : error_response(ready);
}

HttpResponse ServerApp::topology() const {
  const Result<EngineInfo> engine = engine_.info();
  if (!engine.ok()) return error_response(engine.status());
  return json_response(topology_json(engine->topology, engine_.stats()));
}

HttpResponse ServerApp::info() const {
  const Result<EngineInfo> engine = engine_.info();
  if (!engine.ok()) return error_response(engine.status());
  const EngineStats stats = engine_.stats();
  return json_response({{"model", options_.model_names.front()},
                        {"model_type", engine->model_type},
                        {"moe_layers", engine->moe_layers},
                        {"experts", engine->experts},
                        {"top_k", engine->top_k},
                        {"max_model_len", engine->max_model_len},
                        {"kv_tokens", engine->kv_tokens},
                        {"ranks", engine->topology.ranks.size()},
                        {"choices", engine->choices},
                        {"expert_tokens", stats.expert_tokens}});
}

HttpResponse ServerApp::page_file(std::string_view name) const {
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.name != name) continue;
    HttpResponse response;
    response.content_type = std::string(content_type_of(name));
    response.body = std::string(file.content);
    response.headers = {
        {"Content-Security-Policy",
         "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src "
         "'self'; "
         "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
        {"Cache-Control", "no-cache"}};
    return response;
  }
  return error_response(404, "There is no such file.", "invalid_request_error");
}

}  // namespace rota
