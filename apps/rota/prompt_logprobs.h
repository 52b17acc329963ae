// How likely given sequences are: the logprob of each token after those before it, from any engine.
//
//   ROTA_ASSIGN_OR_RETURN(const auto engine, open_engine(prompt_options(options, sequences), hostfile));
//   ROTA_ASSIGN_OR_RETURN(const auto logprobs, prompt_logprobs(*engine, sequences));
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "engine/engine_client.h"
#include "engine/engine_options.h"
#include "rota/scoring.h"

namespace rota {

// Options under which an engine holds the sequences and no more than that, unless a length was
// asked for.
EngineOptions prompt_options(EngineOptions options, std::span<const ScoredSequence> sequences,
                             bool one_by_one = false);

// [sequences][tokens - 1]: the first token of a sequence has none. one_by_one: each has the engine
// alone.
Result<std::vector<std::vector<float>>> prompt_logprobs(EngineClient& engine,
                                                        std::span<const ScoredSequence> sequences,
                                                        bool one_by_one = false);

}  // namespace rota
