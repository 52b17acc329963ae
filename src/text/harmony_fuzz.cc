// libFuzzer target of the harmony parser: bytes are tokens of a small vocabulary. Whatever they
// are, pieces are whole code points, none is empty, and tool call deltas belong to a call that
// began.
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "text/harmony/chat_parser.h"
#include "text/utf8_stream.h"

namespace rota::harmony {
namespace {

constexpr const char* kMarks[] = {"<|start|>",  "<|channel|>", "<|message|>",  "<|end|>",
                                  "<|return|>", "<|call|>",    "<|constrain|>"};
constexpr const char* kWords[] = {"assistant", "analysis",    "final", "commentary",
                                  "Ġto=",      "functions.f", "Ġjson"};

// Seven marks, seven words, then one token a byte.
std::shared_ptr<const Tokenizer> small_tokenizer() {
  nlohmann::json vocab = nlohmann::json::object();
  nlohmann::json added = nlohmann::json::array();
  int id = 0;
  for (const char* mark : kMarks) {
    added.push_back({{"id", id},
                     {"content", mark},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    vocab[mark] = id++;
  }
  for (const char* word : kWords) vocab[word] = id++;
  int unprintable = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const int c = printable ? byte : unprintable++;
    std::string name;
    if (c >= 0x80) name += static_cast<char>(0xC0 | (c >> 6));
    name += static_cast<char>(c >= 0x80 ? 0x80 | (c & 0x3F) : c);
    vocab[name] = id++;
  }
  const nlohmann::json json = {
      {"version", "1.0"},
      {"added_tokens", added},
      {"decoder", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
  auto loaded = Tokenizer::from_json(json.dump(), "fuzz");
  ROTA_CHECK(loaded.ok(), loaded.status().message());
  return *loaded;
}

void check(const std::vector<ChatDelta>& deltas, int& calls) {
  for (const ChatDelta& delta : deltas) {
    ROTA_CHECK(!delta.text.empty(), "an empty delta");
    ROTA_CHECK(is_valid_utf8(delta.text), "part of a code point");
    if (delta.kind == ChatDelta::Kind::kToolCallStart)
      ROTA_CHECK(delta.tool_index == calls++, "order");
    if (delta.kind == ChatDelta::Kind::kToolCallArguments) {
      ROTA_CHECK(delta.tool_index == calls - 1, "arguments of a call that did not begin");
    }
  }
}

}  // namespace
}  // namespace rota::harmony

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rota::harmony;
  static const auto tokenizer = small_tokenizer();
  static const Vocabulary vocabulary = *Vocabulary::of(*tokenizer);
  HarmonyChatParser parser(tokenizer, vocabulary);
  int calls = 0;
  // Bytes 0 to 13 are marks and words; the others are themselves.
  for (size_t i = 0; i < size; ++i)
    check(parser.push(data[i] < 14 ? data[i] : data[i] + 14), calls);
  const rota::ChatEnd end = parser.finish("stop");
  check(end.deltas, calls);
  ROTA_CHECK(end.finish_reason == (calls > 0 ? "tool_calls" : "stop"), "finish reason");
  return 0;
}
