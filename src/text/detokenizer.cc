#include "text/detokenizer.h"

#include <utility>

namespace rota {

Detokenizer::Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, DetokenizerOptions options)
    : tokenizer_(std::move(tokenizer)),
      options_(options),
      utf8_(tokenizer_->decode_plan().byte_fallback ? Utf8Stream::Replace::kEachByte
                                                    : Utf8Stream::Replace::kEachSequence),
      continues_(options.continues_text) {
  begin_text();
}

void Detokenizer::begin_text() {
  at_start_ = true;
  spaces_to_strip_ = continues_ ? 0 : tokenizer_->decode_plan().strip_leading_spaces;
}

std::string Detokenizer::push(int32_t id) {
  std::string out;
  if (!tokenizer_->has_token(id)) return out;
  if (options_.skip_special && tokenizer_->is_special(id)) return out;
  append(id, out);
  return out;
}

void Detokenizer::append(int32_t id, std::string& out) {
  const DecodePlan& plan = tokenizer_->decode_plan();
  std::string_view bytes = tokenizer_->token_bytes(id);
  // A byte token goes on with a character that byte tokens began; other tokens of such a vocabulary
  // are whole text.
  if (plan.byte_fallback && !tokenizer_->is_byte(id)) utf8_.finish(out);
  const bool first = std::exchange(at_start_, false);
  if (plan.space_between_tokens && (!first || continues_)) utf8_.append(" ", out);

  if (plan.strip_only_first_token && first && spaces_to_strip_ > 0) {
    std::string kept;
    for (char c : bytes) {
      if (c != ' ') kept += c;
    }
    spaces_to_strip_ = 0;
    utf8_.append(kept, out);
    return;
  }
  while (spaces_to_strip_ > 0 && bytes.starts_with(' ')) {
    bytes.remove_prefix(1);
    --spaces_to_strip_;
  }
  if (!bytes.empty()) spaces_to_strip_ = 0;
  utf8_.append(bytes, out);
}

std::string Detokenizer::finish() {
  std::string out;
  utf8_.finish(out);
  begin_text();
  return out;
}

}  // namespace rota
