// The front's book of accepted requests: what was asked and what was told of it, so that an engine
// that was started again can go on where the one before it stopped.
//
//   ledger.accept(request, on_output);                        // waits
//   while (auto next = ledger.give_next(places)) send(next->to_send());
//   if (auto request = ledger.take(output)) request->on_output(output);
//   ended = ledger.engine_died("was killed ...", max_num_seqs);   // all others wait again
//
// Contract: not thread-safe. A request is given in order of arrival, with its seed fixed when it
// was accepted and the tokens that were told: sampling is keyed by (seed, position), so that the
// engine goes on with the tokens of an undisturbed run. A request that was being computed in two
// deaths in a row, without a token before them, is suspected of killing the engine: such are given
// one at a time, while every other one there has been heard of. The third death ends that request
// alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/engine_client.h"

namespace rota {

struct AcceptedRequest {
  std::string client_id;
  // Its id is the one on the wire: never used twice, so that late outputs of a cancelled request
  // cannot reach one that took its name.
  EngineRequest request;
  EngineClient::OutputFn on_output;

  std::vector<int32_t> told;             // generated tokens
  std::optional<int64_t> cached_tokens;  // as first told
  bool with_engine = false;              // given to the engine that lives now
  bool heard = false;                    // it has said something of it
  int engines = 0;                       // that it was given to
  int deaths = 0;                        // of engines that computed it, since it was last heard of

  EngineRequest to_send() const;
};

// A request that is no longer in the book, and why.
struct EndedRequest {
  std::shared_ptr<AcceptedRequest> request;
  Status status;
};

class RequestLedger {
 public:
  using RequestPtr = std::shared_ptr<AcceptedRequest>;

  // engine_seed: of requests that bring none.
  explicit RequestLedger(int64_t engine_seed) : engine_seed_(engine_seed) {}

  void accept(EngineRequest request, EngineClient::OutputFn on_output);
  bool contains(std::string_view client_id) const { return numbers_.contains(client_id); }

  // The next one for the engine, which holds up to `places`; none: nobody waits, or it has to.
  RequestPtr give_next(int64_t places);

  // Writes down what the engine says of a request, and puts the client's id and the cached tokens
  // that it knows into the output. The end of a request is its end here. None: the request was
  // cancelled, or the output is the last word of an engine that ends.
  RequestPtr take(RequestOutput& output);

  RequestPtr remove(std::string_view client_id);
  std::vector<RequestPtr> remove_all();

  // Everything waits for the next engine, but for one with which the third in a row has died.
  // max_num_seqs: how many it computed at once.
  std::vector<EndedRequest> engine_died(std::string_view how, int64_t max_num_seqs);
  // Those that an engine which has less room than the one before can never serve.
  std::vector<EndedRequest> remove_unfit(const EngineInfo& info);

  int64_t size() const { return static_cast<int64_t>(requests_.size()); }
  bool empty() const { return requests_.empty(); }
  int64_t waiting() const { return size() - with_engine_; }
  int64_t replayed() const { return replayed_; }  // so far, each time it was given again

 private:
  using Requests = std::map<uint64_t, RequestPtr>;  // by number: in order of arrival
  void count_death(int64_t max_num_seqs);
  RequestPtr erase(Requests::iterator at);
  Requests::iterator find_on_the_wire(std::string_view wire_id);
  template <typename Condition>
  bool any(Condition condition) const;

  int64_t engine_seed_;
  uint64_t accepted_ = 0;
  Requests requests_;
  std::map<std::string, uint64_t, std::less<>> numbers_;  // by the client's id
  int64_t with_engine_ = 0;
  int64_t replayed_ = 0;
};

}  // namespace rota
