#include "server/api/api_request.h"

#include <charconv>
#include <limits>

#include "server/api/json_fields.h"

namespace rota {
namespace {

constexpr int64_t kMaxTokens = 1 << 30;
constexpr size_t kMaxStops = 64;
constexpr size_t kMaxStopBytes = 4096;
constexpr size_t kMaxLogitBiases = 1024;
constexpr size_t kMaxPrompts = 1024;
constexpr size_t kMaxPromptTokens = 1 << 24;

void read_stop(FieldReader& fields, std::vector<std::string>& stop) {
  const OrderedJson* value = fields.find("stop");
  if (value == nullptr) return;
  const OrderedJson list = value->is_string() ? OrderedJson::array({*value}) : *value;
  if (!list.is_array()) return fields.fail("stop", "must be a string or a list of strings");
  if (list.size() > kMaxStops)
    return fields.fail("stop", fmt::format("has more than {} strings", kMaxStops));
  for (const OrderedJson& entry : list) {
    if (!entry.is_string()) return fields.fail("stop", "must be a string or a list of strings");
    const auto& text = entry.get_ref<const std::string&>();
    if (text.empty()) return fields.fail("stop", "must not hold an empty string");
    if (text.size() > kMaxStopBytes) {
      return fields.fail("stop",
                         fmt::format("holds a string of more than {} bytes", kMaxStopBytes));
    }
    stop.push_back(text);
  }
}

void read_logit_bias(FieldReader& fields, SamplingParams& sampling) {
  const OrderedJson* value = fields.find("logit_bias");
  if (value == nullptr) return;
  if (!value->is_object()) return fields.fail("logit_bias", "must map token ids to numbers");
  if (value->size() > kMaxLogitBiases) {
    return fields.fail("logit_bias", fmt::format("has more than {} entries", kMaxLogitBiases));
  }
  for (const auto& [key, bias] : value->items()) {
    int32_t id = 0;
    const auto [end, fault] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (fault != std::errc() || end != key.data() + key.size() || id < 0) {
      return fields.fail("logit_bias", "must map token ids to numbers");
    }
    if (!bias.is_number() || !(bias.get<double>() >= -100 && bias.get<double>() <= 100)) {
      return fields.fail("logit_bias", "values must be between -100 and 100");
    }
    sampling.logit_bias.emplace_back(id, bias.get<double>());
  }
}

void read_stream(FieldReader& fields, ApiRequest& request) {
  fields.read("stream", request.stream);
  const OrderedJson* options = fields.find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) return fields.fail("stream_options", "must be an object");
  if (!request.stream)
    return fields.fail("stream_options", "is only allowed together with stream: true");
  FieldReader inner(*options, "stream_options.");
  inner.read("include_usage", request.include_usage);
  inner.read("continuous_usage_stats", request.continuous_usage);
  if (!inner.status().ok()) fields.fail("stream_options", inner.status().message());
}

void read_sampling(FieldReader& fields, SamplingParams& sampling) {
  constexpr double kNoLimit = std::numeric_limits<double>::max();
  fields.read("temperature", sampling.temperature, 0.0, 2.0);
  fields.read("top_p", sampling.top_p, std::numeric_limits<double>::min(), 1.0);
  fields.read("top_k", sampling.top_k, -1, std::numeric_limits<int32_t>::max());
  fields.read("min_p", sampling.min_p, 0.0, 1.0);
  fields.read("presence_penalty", sampling.presence_penalty, -2.0, 2.0);
  fields.read("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0);
  fields.read("repetition_penalty", sampling.repetition_penalty, std::numeric_limits<double>::min(),
              kNoLimit);
  fields.read("seed", sampling.seed, std::numeric_limits<int64_t>::min(),
              std::numeric_limits<int64_t>::max());
  fields.read("min_tokens", sampling.min_tokens, 0, kMaxTokens);
  fields.read("ignore_eos", sampling.ignore_eos);
  fields.read("stop_token_ids", sampling.stop_token_ids, 1024);
  read_logit_bias(fields, sampling);
}

// Fields that OpenAI's or vLLM's clients know and that are not served here yet: their neutral
// values pass.
void refuse_unserved(FieldReader& fields) {
  fields.refuse_unless("response_format", {{"type", "text"}},
                       "only {\"type\": \"text\"} is served");
  for (const char* name :
       {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"}) {
    fields.refuse_unless(name, nullptr, "structured output is not served");
  }
  fields.refuse_unless("best_of", 1, "only 1 is served");
  fields.refuse_unless("use_beam_search", false, "beam search is not served");
  fields.refuse_unless("length_penalty", 1.0, "beam search is not served");
  fields.refuse_unless("chat_template", nullptr,
                       "a template in a request is never run; set it on the server");
  fields.refuse_unless("audio", nullptr, "audio is not served");
  fields.refuse_unless("prediction", nullptr, "predicted outputs are not served");
  fields.refuse_unless("web_search_options", nullptr, "web search is not served");
  fields.refuse_unless("functions", OrderedJson::array(), "is deprecated: use tools");
  fields.refuse_unless("function_call", "none", "is deprecated: use tool_choice");
  fields.refuse_unless("truncate_prompt_tokens", nullptr, "prompts are never truncated");
  fields.refuse_unless("suffix", "", "insertion is not served");
  if (const OrderedJson* modalities = fields.find("modalities");
      modalities != nullptr && *modalities != OrderedJson::array({"text"})) {
    fields.fail("modalities", "only [\"text\"] is served");
  }
}

void read_common(FieldReader& fields, ApiRequest& request) {
  fields.read("model", request.model, 4096);
  read_stream(fields, request);
  fields.read("n", request.n, 1, kMaxChoices);
  fields.read("max_tokens", request.max_tokens, 0, kMaxTokens);
  read_sampling(fields, request.sampling);
  request.client_stop_token_ids = request.sampling.stop_token_ids;
  read_stop(fields, request.stop);
  fields.read("include_stop_str_in_output", request.include_stop_in_text);
  fields.read("skip_special_tokens", request.skip_special_tokens);
  fields.read("return_routed_experts", request.return_routed_experts);
  fields.read("return_token_ids", request.return_token_ids);
  fields.read("priority", request.priority, std::numeric_limits<int32_t>::min(),
              std::numeric_limits<int32_t>::max());
  fields.read("cache_salt", request.cache_salt, 4096);
  refuse_unserved(fields);
}

Status check_together(const ApiRequest& request) {
  if (request.max_tokens && request.sampling.min_tokens > *request.max_tokens) {
    return invalid_argument("min_tokens: {} is more than max_tokens, which is {}",
                            request.sampling.min_tokens, *request.max_tokens);
  }
  return {};
}

bool is_token_list(const OrderedJson& value) {
  return value.is_array() && !value.empty() && value.front().is_number();
}

void read_prompts(FieldReader& fields, ApiRequest& request) {
  const OrderedJson* value = fields.find("prompt");
  if (value == nullptr) return fields.fail("prompt", "is missing");
  const bool many = value->is_array() && !is_token_list(*value);
  const OrderedJson list = many ? *value : OrderedJson::array({*value});
  if (list.empty()) return fields.fail("prompt", "must not be empty");
  if (list.size() > kMaxPrompts)
    return fields.fail("prompt", fmt::format("has more than {} prompts", kMaxPrompts));
  for (const OrderedJson& prompt : list) {
    if (prompt.is_string()) {
      request.prompts.emplace_back(prompt.get<std::string>());
      continue;
    }
    if (!is_token_list(prompt)) {
      return fields.fail(
          "prompt", "must be a string, a list of strings, a list of token ids or a list of those");
    }
    const OrderedJson wrapped = {{"prompt", prompt}};
    FieldReader ids(wrapped);
    std::vector<int32_t> tokens;
    ids.read("prompt", tokens, kMaxPromptTokens);
    if (!ids.status().ok())
      return fields.fail("prompt", "must be a list of token ids (integers from 0 on)");
    request.prompts.emplace_back(std::move(tokens));
  }
}

}  // namespace

Result<ApiRequest> parse_completion_request(const OrderedJson& body,
                                            const SamplingParams& defaults) {
  ApiRequest request;
  request.sampling = defaults;
  request.add_special_tokens = true;
  FieldReader fields(body);
  read_common(fields, request);
  read_prompts(fields, request);
  fields.read("echo", request.echo);
  fields.read("add_special_tokens", request.add_special_tokens);
  std::optional<int64_t> logprobs;
  fields.read("logprobs", logprobs, 0, kMaxLogprobs);
  if (logprobs) {
    request.sampling.logprobs = *logprobs;
    if (request.echo) request.prompt_logprobs = logprobs;
  }
  fields.read("prompt_logprobs", request.prompt_logprobs, 0, kMaxLogprobs);
  if (!fields.status().ok()) return fields.status();
  if (request.stream && request.prompt_logprobs && !request.echo) {
    return invalid_argument("prompt_logprobs: is not served together with stream");
  }
  request.sampling.max_tokens = request.max_tokens.value_or(16);
  if (static_cast<int64_t>(request.prompts.size()) * request.n > kMaxChoicesOfARequest) {
    return invalid_argument("n: {} choices of {} prompts are more than the {} of one request",
                            request.n, request.prompts.size(), kMaxChoicesOfARequest);
  }
  ROTA_RETURN_IF_ERROR(check_together(request));
  return request;
}

Result<ApiRequest> parse_chat_request(const OrderedJson& body, const SamplingParams& defaults) {
  ApiRequest request;
  request.sampling = defaults;
  FieldReader fields(body);
  read_common(fields, request);
  fields.read("max_completion_tokens", request.max_tokens, 0, kMaxTokens);
  bool logprobs = false;
  std::optional<int64_t> top_logprobs;
  fields.read("logprobs", logprobs);
  fields.read("top_logprobs", top_logprobs, 0, kMaxLogprobs);
  if (top_logprobs && *top_logprobs > 0 && !logprobs)
    fields.fail("top_logprobs", "needs logprobs: true");
  if (logprobs) request.sampling.logprobs = top_logprobs.value_or(0);
  fields.refuse_unless("echo", false, "is served by /v1/completions only");
  fields.refuse_unless("prompt_logprobs", nullptr, "is served by /v1/completions only");
  fields.read("add_generation_prompt", request.add_generation_prompt);
  fields.refuse_unless("continue_final_message", false, "is not served");
  fields.read("reasoning_effort", request.reasoning_effort, 64);
  if (!fields.status().ok()) return fields.status();

  const OrderedJson* messages = fields.find("messages");
  if (messages == nullptr) return invalid_argument("messages: is missing");
  if (!messages->is_array() || messages->empty()) {
    return invalid_argument("messages: must be a list with at least one message");
  }
  request.messages = *messages;
  if (const OrderedJson* tools = fields.find("tools");
      tools != nullptr && *tools != OrderedJson::array()) {
    if (!tools->is_array()) return invalid_argument("tools: must be a list");
    request.tools = *tools;
  }
  if (const OrderedJson* choice = fields.find("tool_choice")) request.tool_choice = *choice;
  if (const OrderedJson* kwargs = fields.find("chat_template_kwargs")) {
    if (!kwargs->is_object()) return invalid_argument("chat_template_kwargs: must be an object");
    if (kwargs->contains("chat_template")) {
      return invalid_argument(
          "chat_template_kwargs: a template in a request is never run; set it on the server");
    }
    request.template_kwargs = *kwargs;
  }
  ROTA_RETURN_IF_ERROR(check_together(request));
  return request;
}

}  // namespace rota
