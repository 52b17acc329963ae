#include "text/harmony/vocabulary.h"

namespace rota::harmony {

std::optional<Vocabulary> Vocabulary::of(const Tokenizer& tokenizer) {
  bool complete = true;
  const auto special = [&](std::string_view name) {
    const std::optional<int32_t> id = tokenizer.id_of(name);
    if (id && tokenizer.is_special(*id)) return *id;
    complete = false;
    return -1;
  };
  Vocabulary out{.start = special("<|start|>"),
                 .channel = special("<|channel|>"),
                 .message = special("<|message|>"),
                 .end = special("<|end|>"),
                 .return_ = special("<|return|>"),
                 .call = special("<|call|>")};
  if (!complete) return std::nullopt;
  out.constrain = special("<|constrain|>");
  return out;
}

}  // namespace rota::harmony
