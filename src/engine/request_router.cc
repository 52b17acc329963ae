#include "engine/request_router.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "engine/engine_stats.h"
#include "engine/random.h"
#include "engine/sampler.h"
#include "engine/wire.h"

namespace rota {

RequestRouter::RequestRouter(RequestDesk& desk, const RouterOptions& options)
    : desk_(desk),
      options_(options),
      spread_(options.groups),
      stats_(static_cast<size_t>(options.groups * options.tp), empty_stats()) {}

void RequestRouter::route(RequestDesk::Command& command, RankMessages& messages) {
  if (auto* submission = std::get_if<RequestDesk::Submission>(&command)) {
    submit(*submission, messages);
  } else {
    cancel(std::get<RequestDesk::Cancellation>(command).id, messages);
  }
}

void RequestRouter::submit(RequestDesk::Submission& submission, RankMessages& messages) {
  if (submission.handle->cancelled) return;
  EngineRequest& request = submission.request;
  const uint64_t arrival = arrivals_++;
  if (!request.sampling.seed) {
    request.sampling.seed = static_cast<int64_t>(drawn_seed(options_.engine_seed, arrival));
    if (request.sampling.temperature >= kGreedyTemperature) {
      log::debug("request {}: seed {}", request.id, *request.sampling.seed);
    }
  }
  const int group = spread_.place(request.prompt.vector(), request.cache_salt);
  const auto generated = static_cast<int64_t>(request.generated.size());  // of a replay
  spread_.add(group, generated);
  Routed routed{.handle = std::move(submission.handle),
                .id = request.id,
                .group = group,
                .tokens = static_cast<int64_t>(request.prompt.size()) + generated};
  request.id = fmt::format("{}#{}", request.id, arrival);
  names_[routed.id] = request.id;
  live_.emplace(request.id, std::move(routed));
  send(group, wire::encode(wire::Submit{std::move(request)}), messages);
}

void RequestRouter::cancel(const std::string& id, RankMessages& messages) {
  const auto name = names_.find(id);
  if (name == names_.end()) return;  // it has ended meanwhile
  const auto it = live_.find(name->second);
  send(it->second.group, wire::encode(wire::Cancel{it->first}), messages);
  forget(it);
}

void RequestRouter::send(int group, const std::string& frame, RankMessages& messages) const {
  for (int rank = group * options_.tp; rank < (group + 1) * options_.tp; ++rank) {
    messages.add(rank, frame);
  }
}

void RequestRouter::forget(Live::iterator it) {
  spread_.add(it->second.group, -it->second.tokens);
  names_.erase(it->second.id);
  live_.erase(it);
}

void RequestRouter::deliver(const RequestOutput& output) {
  const auto it = live_.find(output.id);
  if (it == live_.end()) return;
  Routed& routed = it->second;
  const auto generated = static_cast<int64_t>(output.tokens.size());
  routed.tokens += generated;
  spread_.add(routed.group, generated);
  output_ = output;
  output_.id = routed.id;
  const std::shared_ptr<RequestDesk::Handle> handle = routed.handle;
  if (output.finish_reason != FinishReason::kNone) forget(it);
  desk_.deliver(*handle, output_);
}

void RequestRouter::note(int rank, EngineStats stats) {
  stats_[static_cast<size_t>(rank)] = std::move(stats);
}

EngineStats RequestRouter::total() const {
  EngineStats total = empty_stats();
  for (size_t rank = 0; rank < stats_.size(); ++rank) {
    const EngineStats& stats = stats_[rank];
    // The ranks of a group run the same sequences: its first one tells of them.
    if (rank % static_cast<size_t>(options_.tp) == 0) {
      add(total, stats);
      add_expert_tokens(total, stats);
    } else {
      total.major_faults += stats.major_faults;
    }
    total.ranks.insert(total.ranks.end(), stats.ranks.begin(), stats.ranks.end());
  }
  total.kv_usage /= options_.groups;
  total.balance = stats_.front().balance;
  return total;
}

}  // namespace rota
