#include "rota/prompt_logprobs.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "rota/request_stream.h"

namespace rota {
namespace {

EngineRequest request_of(const ScoredSequence& sequence, size_t index) {
  EngineRequest request;
  request.id = fmt::format("sequence-{}", index);
  request.prompt = sequence.ids;
  request.sampling.max_tokens = 0;
  request.sampling.prompt_logprobs = 0;
  return request;
}

// Of a request that runs: waits for its end.
Result<std::vector<float>> read_logprobs(RequestStream& stream) {
  std::vector<float> logprobs;
  while (const auto output = stream.next()) {
    if (output->finish_reason == FinishReason::kError) return output->status;
    for (const auto& position : output->prompt_logprobs) {
      if (position) logprobs.push_back(position->front().logprob);
    }
  }
  return logprobs;
}

}  // namespace

EngineOptions prompt_options(EngineOptions options, std::span<const ScoredSequence> sequences,
                             bool one_by_one) {
  size_t longest = 1;
  for (const ScoredSequence& it : sequences) longest = std::max(longest, it.ids.size());
  if (options.max_model_len == 0) options.max_model_len = static_cast<int64_t>(longest);
  const auto most = one_by_one ? 1 : static_cast<int64_t>(sequences.size());
  options.max_num_seqs = std::clamp<int64_t>(most, 1, options.max_num_seqs);
  return options;
}

Result<std::vector<std::vector<float>>> prompt_logprobs(EngineClient& engine,
                                                        std::span<const ScoredSequence> sequences,
                                                        bool one_by_one) {
  ROTA_ASSIGN_OR_RETURN(const EngineInfo info, engine.info());
  const size_t at_once = one_by_one ? 1 : static_cast<size_t>(info.max_num_seqs);
  std::vector<std::vector<float>> all;
  std::deque<RequestStream>
      running;  // those of sequences [all.size(), all.size() + running.size())
  while (all.size() < sequences.size()) {
    const size_t next = all.size() + running.size();
    if (next < sequences.size() && running.size() < at_once) {
      const Status submitted =
          running.emplace_back(engine).submit(request_of(sequences[next], next));
      if (!submitted.ok()) return submitted.with_context(sequences[next].name);
      continue;
    }
    Result<std::vector<float>> logprobs = read_logprobs(running.front());
    if (!logprobs.ok()) return logprobs.status().with_context(sequences[all.size()].name);
    all.push_back(*std::move(logprobs));
    running.pop_front();
  }
  return all;
}

}  // namespace rota
