// Many prompts through one engine, some of them at once; their texts come as they end.
//
//   complete_all(*engine, tokenizer, {.stop = {"\n\n"}, .at_once = 8}, std::move(prompts), [&](const Completion& it) {...});
//
// Prompts are given in their order. The first one that fails, or `on_done`'s error, ends the
// others.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine_client.h"
#include "text/tokenizer.h"

namespace rota {

struct CompletionOptions {
  SamplingParams sampling = {};
  std::vector<std::string> stop = {};
  int64_t at_once = 1;
};

struct Completion {
  size_t prompt = 0;  // which
  std::string text = {};
  FinishReason finish_reason = FinishReason::kNone;
  int64_t tokens = 0;
};

Status complete_all(EngineClient& engine, const std::shared_ptr<const Tokenizer>& tokenizer,
                    const CompletionOptions& options, std::vector<TokenIds> prompts,
                    const std::function<Status(const Completion&)>& on_done);

}  // namespace rota
