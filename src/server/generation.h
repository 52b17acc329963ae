// One API request while it is being answered: its prompts, its choices, its engine requests.
// Private to the server.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "platform/clock.h"
#include "server/api/api_request.h"
#include "server/api/choice.h"
#include "server/api/output_queue.h"
#include "server/app.h"

namespace rota {

struct ServerApp::Generation {
  std::string id;      // "cmpl-..." or "chatcmpl-..."
  const char* object;  // of a whole response; a stream's is chunk_object
  const char* chunk_object;
  ApiRequest request;
  std::string model;
  int64_t created = 0;
  Clock::time_point started = Clock::now();

  // Prompt p has choices [p * n, (p + 1) * n).
  std::vector<TokenIds> prompts;
  std::vector<std::unique_ptr<Choice>> choices;
  std::vector<Clock::time_point> last_token;  // of each choice; the start before the first
  std::vector<bool> has_token;
  std::vector<bool> finished;
  std::shared_ptr<OutputQueue> queue;
  int64_t cached_tokens = 0;

  // Lives as long as the choices that point into it.
  ChatPrompt chat_prompt;
  bool chat = false;

  std::string engine_id(size_t choice) const { return id + "-" + std::to_string(choice); }
  const TokenIds& prompt_of(size_t choice) const {
    return prompts[choice / static_cast<size_t>(request.n)];
  }
  bool all_finished() const {
    for (const bool one : finished) {
      if (!one) return false;
    }
    return true;
  }
};

}  // namespace rota
