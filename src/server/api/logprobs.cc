#include "server/api/logprobs.h"

#include <algorithm>

namespace rota {
namespace {

OrderedJson bytes_of(std::string_view text) {
  OrderedJson bytes = OrderedJson::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

OrderedJson entry(const Tokenizer& tokenizer, const TokenLogprob& value) {
  return {{"token", tokenizer.token_text(value.token)},
          {"logprob", value.logprob},
          {"bytes", bytes_of(tokenizer.token_bytes(value.token))}};
}

int64_t code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

OrderedJson chat_logprob(const Tokenizer& tokenizer, const PositionLogprobs& position) {
  OrderedJson out = entry(tokenizer, position.front());
  OrderedJson top = OrderedJson::array();
  for (size_t i = 1; i < position.size(); ++i) top.push_back(entry(tokenizer, position[i]));
  out["top_logprobs"] = std::move(top);
  return out;
}

void CompletionLogprobs::add(int32_t token, const std::optional<PositionLogprobs>& position) {
  const std::string text = tokenizer_.token_text(token);
  tokens_.push_back(text);
  offsets_.push_back(offset_);
  offset_ += code_points(text);
  if (!position || position->empty()) {
    logprobs_.push_back(nullptr);
    top_.push_back(nullptr);
    return;
  }
  logprobs_.push_back(position->front().logprob);
  // The chosen token is among the top ones even where it was not likely, as OpenAI's API has it.
  OrderedJson top = OrderedJson::object();
  for (size_t i = 1; i < position->size(); ++i) {
    top[tokenizer_.token_text((*position)[i].token)] = (*position)[i].logprob;
  }
  top[text] = position->front().logprob;
  top_.push_back(std::move(top));
}

OrderedJson CompletionLogprobs::take() {
  OrderedJson out = {{"tokens", std::move(tokens_)},
                     {"token_logprobs", std::move(logprobs_)},
                     {"top_logprobs", std::move(top_)},
                     {"text_offset", std::move(offsets_)}};
  tokens_ = logprobs_ = top_ = offsets_ = OrderedJson::array();
  return out;
}

OrderedJson prompt_logprobs(const Tokenizer& tokenizer,
                            const std::vector<std::optional<PositionLogprobs>>& positions) {
  OrderedJson out = OrderedJson::array();
  for (const auto& position : positions) {
    if (!position) {
      out.push_back(nullptr);
      continue;
    }
    OrderedJson tokens = OrderedJson::object();
    for (const TokenLogprob& value : *position) {
      tokens[std::to_string(value.token)] = {{"logprob", value.logprob},
                                             {"rank", value.rank},
                                             {"decoded_token", tokenizer.token_text(value.token)}};
    }
    out.push_back(std::move(tokens));
  }
  return out;
}

}  // namespace rota
