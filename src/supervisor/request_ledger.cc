#include "supervisor/request_ledger.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/log.h"
#include "engine/random.h"

namespace rota {
namespace {

constexpr int kSuspiciousDeaths = 2;
constexpr int kMaxDeaths = 3;

bool suspected(const AcceptedRequest& request) { return request.deaths >= kSuspiciousDeaths; }

// An engine that is about to end says so of each of its requests: they go on with the next one.
bool is_last_word(const RequestOutput& output) {
  return output.finish_reason == FinishReason::kError &&
         output.status.code() == StatusCode::kUnavailable;
}

}  // namespace

EngineRequest AcceptedRequest::to_send() const {
  EngineRequest sent = request;
  sent.generated = told;
  return sent;
}

void RequestLedger::accept(EngineRequest request, EngineClient::OutputFn on_output) {
  const uint64_t number = accepted_++;
  if (!request.sampling.seed) {
    request.sampling.seed = static_cast<int64_t>(drawn_seed(engine_seed_, number));
    log::debug("request {}: seed {}", request.id, *request.sampling.seed);
  }
  auto accepted = std::make_shared<AcceptedRequest>();
  accepted->client_id = request.id;
  accepted->told = request.generated.vector();
  accepted->on_output = std::move(on_output);
  numbers_[request.id] = number;
  request.id = fmt::format("{}#{}", request.id, number);
  request.generated = {};
  accepted->request = std::move(request);
  requests_[number] = std::move(accepted);
}

template <typename Condition>
bool RequestLedger::any(Condition condition) const {
  return std::any_of(requests_.begin(), requests_.end(),
                     [&](const auto& entry) { return condition(*entry.second); });
}

RequestLedger::RequestPtr RequestLedger::give_next(int64_t places) {
  if (waiting() == 0 || with_engine_ >= places) return nullptr;
  const bool suspicion = any(suspected);
  const auto unheard = [](const AcceptedRequest& it) { return it.with_engine && !it.heard; };
  if (suspicion && any(unheard)) return nullptr;
  const auto next = std::find_if(requests_.begin(), requests_.end(), [&](const auto& entry) {
    return !entry.second->with_engine && (!suspicion || suspected(*entry.second));
  });
  AcceptedRequest& request = *next->second;
  request.with_engine = true;
  request.heard = false;
  ++with_engine_;
  if (request.engines++ > 0) ++replayed_;
  return next->second;
}

RequestLedger::Requests::iterator RequestLedger::find_on_the_wire(std::string_view wire_id) {
  const std::string_view digits = wire_id.substr(wire_id.rfind('#') + 1);
  uint64_t number = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const auto found = parsed.ec == std::errc() ? requests_.find(number) : requests_.end();
  return found != requests_.end() && found->second->request.id == wire_id ? found : requests_.end();
}

RequestLedger::RequestPtr RequestLedger::take(RequestOutput& output) {
  const auto found = find_on_the_wire(output.id);
  if (found == requests_.end() || is_last_word(output)) return nullptr;
  AcceptedRequest& request = *found->second;
  request.heard = true;
  request.deaths = 0;
  for (const OutputToken& token : output.tokens) request.told.push_back(token.id);
  if (!request.cached_tokens) request.cached_tokens = output.cached_tokens;
  output.cached_tokens = *request.cached_tokens;
  output.id = request.client_id;
  return output.finish_reason == FinishReason::kNone ? found->second : erase(found);
}

RequestLedger::RequestPtr RequestLedger::erase(Requests::iterator at) {
  RequestPtr request = std::move(at->second);
  if (request->with_engine) --with_engine_;
  numbers_.erase(request->client_id);
  requests_.erase(at);
  return request;
}

RequestLedger::RequestPtr RequestLedger::remove(std::string_view client_id) {
  const auto found = numbers_.find(client_id);
  return found == numbers_.end() ? nullptr : erase(requests_.find(found->second));
}

std::vector<RequestLedger::RequestPtr> RequestLedger::remove_all() {
  std::vector<RequestPtr> all;
  while (!requests_.empty()) all.push_back(erase(requests_.begin()));
  return all;
}

// What was told of is computed, then those whose turn it is; the others had not begun.
void RequestLedger::count_death(int64_t max_num_seqs) {
  std::multimap<int64_t, AcceptedRequest*> unheard;  // by priority, then in order of arrival
  int64_t places = max_num_seqs;
  for (const auto& [number, request] : requests_) {
    if (!request->with_engine) continue;
    if (request->heard) {
      --places;
    } else {
      unheard.emplace(request->request.priority, request.get());
    }
  }
  for (const auto& [priority, request] : unheard) {
    if (places-- > 0) ++request->deaths;
  }
}

std::vector<EndedRequest> RequestLedger::engine_died(std::string_view how, int64_t max_num_seqs) {
  count_death(max_num_seqs);
  std::vector<EndedRequest> ended;
  for (auto at = requests_.begin(); at != requests_.end();) {
    const auto here = at++;
    if (here->second->deaths >= kMaxDeaths) {
      ended.push_back(
          {erase(here), error(StatusCode::kInternal,
                              "the engine died {} times in a row while it computed this request; "
                              "it is not tried again ({})",
                              kMaxDeaths, how)});
    } else {
      here->second->with_engine = false;
    }
  }
  with_engine_ = 0;
  return ended;
}

std::vector<EndedRequest> RequestLedger::remove_unfit(const EngineInfo& info) {
  std::vector<EndedRequest> ended;
  for (auto at = requests_.begin(); at != requests_.end();) {
    const auto here = at++;
    const Status status = check_request(here->second->to_send(), info);
    if (status.ok()) continue;
    ended.push_back(
        {erase(here), status.with_context("the engine was started again with less room")});
  }
  return ended;
}

}  // namespace rota
