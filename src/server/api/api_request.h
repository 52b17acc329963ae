// A request of /v1/completions or /v1/chat/completions, read and checked: ranges are settled here,
// before the engine sees anything.
//
// Unknown fields are tolerated. A known field that is not served here is refused by name unless its
// value is neutral, so that nothing a client asked for is ignored in silence.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "engine/request.h"
#include "text/chat.h"

namespace rota {

using PromptText = std::variant<std::string, std::vector<int32_t>>;

struct ApiRequest {
  std::string model;  // empty: not named
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  int64_t n = 1;
  SamplingParams sampling;
  std::optional<int64_t> max_tokens;  // none: completions 16, chat what the context leaves
  std::vector<std::string> stop;
  std::vector<int32_t>
      client_stop_token_ids;  // as asked for; sampling's list may grow by the chat format's
  bool include_stop_in_text = false;
  bool skip_special_tokens = true;
  bool return_routed_experts = false;
  bool return_token_ids = false;
  int64_t priority = 0;
  std::string cache_salt;

  // /v1/completions
  std::vector<PromptText> prompts;
  bool echo = false;
  std::optional<int64_t> prompt_logprobs;

  // /v1/chat/completions
  OrderedJson messages;
  OrderedJson tools;        // null, or a list
  OrderedJson tool_choice;  // null: auto
  std::string reasoning_effort;
  OrderedJson template_kwargs;  // null, or an object
  bool add_generation_prompt = true;
  bool add_special_tokens = false;
};

inline constexpr int64_t kMaxChoices = 128;
inline constexpr int64_t kMaxChoicesOfARequest = 1024;  // of all its prompts

// `defaults` are the model's own sampling parameters (generation_config.json).
Result<ApiRequest> parse_completion_request(const OrderedJson& body,
                                            const SamplingParams& defaults);
Result<ApiRequest> parse_chat_request(const OrderedJson& body, const SamplingParams& defaults);

}  // namespace rota
