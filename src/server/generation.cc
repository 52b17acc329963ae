#include "server/generation.h"

#include <utility>

#include "base/log.h"
#include "server/api/json_fields.h"
#include "server/http/errors.h"

namespace rota {
namespace {

std::string sse(const std::string& json) { return "data: " + json + "\n\n"; }

OrderedJson usage_json(int64_t prompt, int64_t completion, int64_t cached, int64_t reasoning,
                       bool chat) {
  OrderedJson usage = {{"prompt_tokens", prompt},
                       {"completion_tokens", completion},
                       {"total_tokens", prompt + completion},
                       {"prompt_tokens_details", {{"cached_tokens", cached}}}};
  if (chat) usage["completion_tokens_details"] = {{"reasoning_tokens", reasoning}};
  return usage;
}

// Engine requests that must not outlive their API request.
class CancelGuard {
 public:
  CancelGuard(EngineClient& engine, std::function<std::string(size_t)> id,
              const std::vector<bool>& finished)
      : engine_(engine), id_(std::move(id)), finished_(finished) {}
  ~CancelGuard() {
    for (size_t i = 0; i < submitted; ++i) {
      if (!finished_[i]) engine_.cancel(id_(i));
    }
  }
  CancelGuard(const CancelGuard&) = delete;
  CancelGuard& operator=(const CancelGuard&) = delete;

  size_t submitted = 0;

 private:
  EngineClient& engine_;
  std::function<std::string(size_t)> id_;
  const std::vector<bool>& finished_;
};

OrderedJson envelope(const std::string& id, const char* object, int64_t created,
                     const std::string& model) {
  return {{"id", id}, {"object", object}, {"created", created}, {"model", model}};
}

struct Totals {
  int64_t prompt = 0, completion = 0, reasoning = 0;
};

}  // namespace

awaitable<void> ServerApp::generate(Generation& generation, HttpExchange& exchange) {
  const ApiRequest& request = generation.request;
  const size_t count = generation.choices.size();
  generation.queue = OutputQueue::make(io_);
  generation.finished.assign(count, false);
  generation.has_token.assign(count, false);
  generation.last_token.assign(count, generation.started);
  CancelGuard guard(
      engine_, [&](size_t choice) { return generation.engine_id(choice); }, generation.finished);
  exchange.on_client_gone([queue = generation.queue] { queue->close(); });
  for (size_t choice = 0; choice < count; ++choice) {
    EngineRequest wanted;
    wanted.id = generation.engine_id(choice);
    wanted.prompt = generation.prompt_of(choice);
    wanted.sampling = request.sampling;
    // Choices of one prompt differ: each has its own seed, counted on from the request's.
    if (wanted.sampling.seed) {
      const auto step = static_cast<uint64_t>(choice % static_cast<size_t>(request.n));
      wanted.sampling.seed =
          static_cast<int64_t>(static_cast<uint64_t>(*wanted.sampling.seed) + step);
    }
    if (request.prompt_logprobs) wanted.sampling.prompt_logprobs = *request.prompt_logprobs;
    wanted.priority = request.priority;
    wanted.cache_salt = request.cache_salt;
    wanted.trace_experts = request.return_routed_experts;
    Status submitted = engine_.submit(
        std::move(wanted), [queue = generation.queue, choice](const RequestOutput& output) {
          queue->push(choice, output);
        });
    if (!submitted.ok()) {
      co_await exchange.respond(error_response(submitted));
      co_return;
    }
    guard.submitted = choice + 1;
  }
  if (request.stream) {
    co_await deliver_stream(generation, exchange);
  } else {
    co_await deliver_whole(generation, exchange);
  }
  for (size_t choice = 0; choice < count; ++choice) {
    if (generation.finished[choice]) continue;  // the others were given up: the client has gone
    metrics_.finished("abort", static_cast<int64_t>(generation.prompt_of(choice).size()),
                      generation.choices[choice]->completion_tokens(),
                      seconds_since(generation.started));
  }
}

awaitable<void> ServerApp::deliver_stream(Generation& generation, HttpExchange& exchange) {
  const ApiRequest& request = generation.request;
  const OrderedJson head =
      envelope(generation.id, generation.chunk_object, generation.created, generation.model);
  const auto totals = [&] {
    Totals sum;
    for (const auto& prompt : generation.prompts) sum.prompt += static_cast<int64_t>(prompt.size());
    for (const auto& choice : generation.choices) {
      sum.completion += choice->completion_tokens();
      sum.reasoning += choice->reasoning_tokens();
    }
    return usage_json(sum.prompt, sum.completion, generation.cached_tokens, sum.reasoning,
                      generation.chat);
  };
  bool begun = false;
  while (!generation.all_finished()) {
    auto item = co_await generation.queue->next();
    if (!item) co_return;  // the client has gone
    Result<ChoiceNews> news = take(generation, item->choice, item->output);
    if (!news.ok()) {
      if (!begun) {
        co_await exchange.respond(error_response(news.status()));
        co_return;
      }
      const bool away = news.status().code() == StatusCode::kUnavailable;
      co_await exchange.send_event(sse(error_json(
          news.status().message(), away ? "service_unavailable" : "server_error", {}, {})));
      break;
    }
    // The status line waits for the first news, so that an early fault is still a proper error.
    if (!begun) {
      HttpHeaders headers;
      headers.emplace_back("X-Request-Id", generation.id);
      co_await exchange.begin_stream(std::move(headers));
      begun = true;
    }
    std::string events;
    for (OrderedJson& delta : news->deltas) {
      OrderedJson event = head;
      event["choices"] = OrderedJson::array({std::move(delta)});
      if (request.include_usage) event["usage"] = nullptr;
      if (request.continuous_usage) event["usage"] = totals();
      events += sse(dump(event));
    }
    if (events.empty()) continue;
    const bool sent = co_await exchange.send_event(events);
    if (!sent) co_return;
  }
  if (request.include_usage && generation.all_finished()) {
    OrderedJson event = head;
    event["choices"] = OrderedJson::array();
    event["usage"] = totals();
    const bool sent = co_await exchange.send_event(sse(dump(event)));
    if (!sent) co_return;
  }
  const bool sent = co_await exchange.send_event("data: [DONE]\n\n");
  if (sent) co_await exchange.end_stream();
}

awaitable<void> ServerApp::deliver_whole(Generation& generation, HttpExchange& exchange) {
  while (!generation.all_finished()) {
    auto item = co_await generation.queue->next();
    if (!item) co_return;
    Result<ChoiceNews> news = take(generation, item->choice, item->output);
    if (!news.ok()) {
      co_await exchange.respond(error_response(news.status()));
      co_return;
    }
  }
  OrderedJson body =
      envelope(generation.id, generation.object, generation.created, generation.model);
  body["choices"] = OrderedJson::array();
  Totals sum;
  for (const auto& prompt : generation.prompts) sum.prompt += static_cast<int64_t>(prompt.size());
  for (const auto& choice : generation.choices) {
    body["choices"].push_back(choice->whole());
    sum.completion += choice->completion_tokens();
    sum.reasoning += choice->reasoning_tokens();
  }
  body["usage"] = usage_json(sum.prompt, sum.completion, generation.cached_tokens, sum.reasoning,
                             generation.chat);
  HttpResponse response;
  response.body = dump(body);
  response.headers.emplace_back("X-Request-Id", generation.id);
  co_await exchange.respond(std::move(response));
}

Result<ChoiceNews> ServerApp::take(Generation& generation, size_t index,
                                   const RequestOutput& output) {
  if (generation.finished[index]) return ChoiceNews{};
  if (output.finish_reason == FinishReason::kError) {
    generation.finished[index] = true;
    metrics_.finished("error", static_cast<int64_t>(generation.prompt_of(index).size()), 0,
                      seconds_since(generation.started));
    return output.status.ok() ? error(StatusCode::kInternal, "The engine failed on this request.")
                              : output.status;
  }
  // Every output of a request says it again; choices of one prompt share it.
  const bool begins = !generation.has_token[index];
  if (begins && index % static_cast<size_t>(generation.request.n) == 0) {
    generation.cached_tokens += output.cached_tokens;
  }
  for (size_t i = 0; i < output.tokens.size(); ++i) {
    const double waited = seconds_since(generation.last_token[index]);
    generation.has_token[index] ? metrics_.next_token(waited) : metrics_.first_token(waited);
    generation.has_token[index] = true;
    generation.last_token[index] = Clock::now();
  }
  ChoiceNews news = generation.choices[index]->add(output);
  if (news.finished) {
    generation.finished[index] = true;
    if (news.cancel_request) engine_.cancel(generation.engine_id(index));
    const FinishReason reason = news.cancel_request ? FinishReason::kStop : output.finish_reason;
    metrics_.finished(to_string(reason), static_cast<int64_t>(generation.prompt_of(index).size()),
                      generation.choices[index]->completion_tokens(),
                      seconds_since(generation.started));
  }
  return news;
}

}  // namespace rota
