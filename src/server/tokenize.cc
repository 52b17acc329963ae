// /tokenize, /detokenize and /tokenizer_info. Texts and answers may be large: all of the work,
// writing the JSON too, is the pool's.
#include "server/api/json_fields.h"
#include "server/app.h"
#include "server/http/errors.h"
#include "server/json_response.h"
#include "server/offload.h"
#include "server/prompt.h"

namespace rota {

awaitable<HttpResponse> ServerApp::tokenize(const HttpRequest& http) {
  auto tokens = co_await offload(pool_, [&]() -> Result<HttpResponse> {
    ROTA_ASSIGN_OR_RETURN(const OrderedJson body, parse_request_json(http.body));
    FieldReader fields(body);
    bool add_special_tokens = true;
    bool with_text = false;
    std::string prompt;
    fields.read("add_special_tokens", add_special_tokens);
    fields.read("return_token_strs", with_text);
    fields.read("prompt", prompt, Tokenizer::kMaxTextBytes);
    if (!fields.status().ok()) return fields.status();
    std::vector<int32_t> ids;
    if (fields.has("messages")) {
      ROTA_ASSIGN_OR_RETURN(const ApiRequest request,
                            parse_chat_request(body, options_.sampling_defaults));
      if (!text_.chat) return text_.chat_problem;
      ROTA_ASSIGN_OR_RETURN(ChatPrompt rendered, text_.chat->render(chat_of(request)));
      ids = std::move(rendered.ids);
    } else if (fields.has("prompt")) {
      ROTA_ASSIGN_OR_RETURN(ids, encode_prompt(*text_.tokenizer, prompt, add_special_tokens));
    } else {
      return invalid_argument("prompt: is missing (or messages)");
    }
    OrderedJson out = {{"count", ids.size()},
                       {"max_model_len", max_model_len()},
                       {"tokens", ids},
                       {"token_strs", nullptr}};
    if (with_text) {
      out["token_strs"] = OrderedJson::array();
      for (const int32_t id : ids) out["token_strs"].push_back(text_.tokenizer->token_text(id));
    }
    return json_response(out);
  });
  if (!tokens.ok()) co_return error_response(tokens.status());
  co_return *std::move(tokens);
}

awaitable<HttpResponse> ServerApp::detokenize(const HttpRequest& http) {
  auto text = co_await offload(pool_, [&]() -> Result<HttpResponse> {
    ROTA_ASSIGN_OR_RETURN(const OrderedJson body, parse_request_json(http.body));
    FieldReader fields(body);
    std::vector<int32_t> ids;
    fields.read("tokens", ids, size_t{1} << 22);
    if (!fields.status().ok()) return fields.status();
    if (!fields.has("tokens")) return invalid_argument("tokens: is missing");
    for (const int32_t id : ids) {
      if (!text_.tokenizer->has_token(id)) {
        return invalid_argument("tokens: {} is no token of this model; ids end at {}", id,
                                text_.tokenizer->vocab_size() - 1);
      }
    }
    return json_response({{"prompt", text_.tokenizer->decode(ids, false)}});
  });
  if (!text.ok()) co_return error_response(text.status());
  co_return *std::move(text);
}

HttpResponse ServerApp::tokenizer_info() const {
  const auto eos = engine_.info();
  return json_response(
      {{"vocab_size", text_.tokenizer->vocab_size()},
       {"special_ids", text_.tokenizer->special_ids()},
       {"eos_token_ids", eos.ok() ? eos->eos_token_ids : std::vector<int32_t>{}},
       {"chat_format", text_.chat ? text_.chat->name() : std::string_view("none")}});
}

}  // namespace rota
