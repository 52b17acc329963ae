// The server's routes: OpenAI's API over an EngineClient, health, metrics and the page.
//
//   ServerApp app(io, engine, {.model_names = {"demo"}});
//   app.set_text(load_text(model_dir));        // tokenizer and chat format
//   HttpServer server(io, http_options, [&](HttpRequest r, HttpExchange& e) { return app.handle(std::move(r), e); });
//
// One ServerApp serves all connections, on the io_context's thread; parsing and tokenising long
// texts happens on a small pool, so that streams and health do not wait for them.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine_client.h"
#include "engine/request.h"
#include "server/access_control.h"
#include "server/api/api_request.h"
#include "server/api/choice.h"
#include "server/http/http_server.h"
#include "server/metrics.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace rota {

// What the front needs of a model beside its engine.
struct ModelText {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatFormat> chat;  // none: chat_problem says why
  Status chat_problem;
};
Result<ModelText> load_model_text(const std::filesystem::path& model_dir);

struct ServerOptions {
  // --served-model-name: the first is the one that answers name.
  std::vector<std::string> model_names = {};
  AccessRules access = {};
  SamplingParams sampling_defaults = {};  // from generation_config.json
  double health_timeout = 60;  // seconds without a step or idleness that health tolerates
};

class ServerApp {
 public:
  ServerApp(boost::asio::io_context& io, EngineClient& engine, ModelText text,
            ServerOptions options);
  ~ServerApp();

  // Answers one request; what HttpServer calls.
  awaitable<void> handle(HttpRequest request, HttpExchange& exchange);
  void start_draining();  // new requests get 503; those that run go on
  int64_t running_requests() const { return running_; }

 private:
  awaitable<void> route(HttpRequest& request, HttpExchange& exchange);

  awaitable<void> completions(HttpRequest& request, HttpExchange& exchange);
  awaitable<void> chat_completions(HttpRequest& request, HttpExchange& exchange);
  awaitable<HttpResponse> tokenize(const HttpRequest& request);
  awaitable<HttpResponse> detokenize(const HttpRequest& request);
  HttpResponse models() const;
  HttpResponse model(std::string_view name) const;
  HttpResponse health() const;
  HttpResponse info() const;
  HttpResponse topology() const;
  HttpResponse tokenizer_info() const;
  HttpResponse page_file(std::string_view name) const;

  OrderedJson model_json(const std::string& name) const;
  int64_t top_k() const;          // of the MoE layers; 0 while the engine is away
  int64_t max_model_len() const;  // 0 while the engine is away

  // An error when requests cannot be taken now, or the model's name is not ours.
  Status ready_for(const ApiRequest& request) const;

  // One API request whose prompts are tokens: submits its choices, delivers their news, cleans up.
  struct Generation;
  awaitable<void> generate(Generation& generation, HttpExchange& exchange);
  // What one output of the engine means for its choice; keeps the books of time and tokens.
  Result<ChoiceNews> take(Generation& generation, size_t choice, const RequestOutput& output);
  awaitable<void> deliver_stream(Generation& generation, HttpExchange& exchange);
  awaitable<void> deliver_whole(Generation& generation, HttpExchange& exchange);

  boost::asio::io_context& io_;
  boost::asio::thread_pool pool_{2};
  EngineClient& engine_;
  ModelText text_;
  ServerOptions options_;
  AccessControl access_;
  Metrics metrics_;
  int64_t created_;
  int64_t running_ = 0;
  std::atomic<bool> draining_ = false;  // read on the pool too
};

}  // namespace rota
