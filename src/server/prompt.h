// From an API request to the tokens of its prompts.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/engine_client.h"
#include "server/api/api_request.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace rota {

// Errors name the field `prompt`. `check_length` as in ChatRequest.
Result<std::vector<int32_t>> encode_prompt(const Tokenizer& tokenizer, const PromptText& prompt,
                                           bool add_special_tokens,
                                           const LengthCheck& check_length = {});

// The conversation of a request, the same for answering it and for counting its tokens.
ChatRequest chat_of(const ApiRequest& request);

// What the engine would say of a prompt, before anything is made for it.
Status check_prompt(const ApiRequest& request, const TokenIds& prompt, const EngineInfo& engine);

// The same of a prompt that is not encoded yet: refuses exactly those that have too many tokens by
// their length alone.
LengthCheck length_check(const ApiRequest& request, const EngineInfo& engine);

}  // namespace rota
