// The special tokens of harmony, the chat format of gpt-oss.
#pragma once

#include <cstdint>
#include <optional>

#include "text/tokenizer.h"

namespace rota::harmony {

struct Vocabulary {
  int32_t start, channel, message, end, return_, call;
  int32_t constrain = -1;  // not every vocabulary has it

  // Nothing if one of the six is missing: then the model speaks no harmony.
  static std::optional<Vocabulary> of(const Tokenizer& tokenizer);
};

}  // namespace rota::harmony
