// Text to token ids and back, as the checkpoint's tokenizer.json says.
//
// Contract: immutable after load() and safe to share between threads. Encoding never adds a BOS or
// any other token by itself unless asked. A damaged or hostile file is an error, never a crash.
// Example:
//   ROTA_ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::load(dir / "tokenizer.json"));
//   ROTA_ASSIGN_OR_RETURN(auto ids, tokenizer->encode("Hello", {.special = Special::kAsText}));
#pragma once

#include <bitset>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

struct RotaTokenizer;  // the other side of the C ABI (rust/rota_text.h)
struct RotaToken;

namespace rota {

// What a string such as "<|end|>" inside the text means: the special token of that name, or seven
// characters that somebody typed. Concerns the tokens that the file marks `"special": true`.
enum class Special { kParse, kAsText };

struct EncodeOptions {
  Special special = Special::kParse;
  bool add_special_tokens = false;  // run the file's post-processor (BOS, EOS) as well
};

// A run of private code points that stand for characters which must not begin a special token: the
// k-th, first + k, stands for originals[k]. Chat templates render with them (markers.h).
struct TextMarkers {
  char32_t first = 0;
  std::u32string originals;  // empty: no markers in use
};

// How the decoder of the file turns the bytes of tokens into a text.
struct DecodePlan {
  bool byte_fallback = false;         // an invalid byte becomes one U+FFFD each, not one a sequence
  uint32_t strip_leading_spaces = 0;  // at most so many are taken off the beginning of a text
  bool strip_only_first_token = false;  // all spaces of the first token, and no others (Metaspace)
  bool space_between_tokens = false;    // a file without a decoder
};

class Tokenizer {
 public:
  // Larger texts are refused: a text costs some 100 bytes of memory a byte while it is encoded.
  static constexpr size_t kMaxTextBytes = size_t{8} << 20;
  static constexpr int64_t kMaxFileBytes = 512 << 20;

  // kNotFound, kIo, kInvalidArgument (no regular file, larger than kMaxFileBytes): cannot be read.
  // kDataLoss: damaged.
  // kUnsupported: it asks for something that is not served.
  static Result<std::shared_ptr<const Tokenizer>> load(const std::filesystem::path& tokenizer_json);
  // The same from memory; `name` stands for the file in messages.
  static Result<std::shared_ptr<const Tokenizer>> from_json(std::string_view json,
                                                            std::string_view name);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // kInvalidArgument: not UTF-8, longer than kMaxTextBytes, or a text that sends the file's regular
  // expression into endless backtracking (a search is given up after 10^7 retries, a text after 30
  // s).
  Result<std::vector<int32_t>> encode(std::string_view text, EncodeOptions options = {}) const;
  // `text` with markers in it: special tokens are parsed, but none begins at a marked character.
  Result<std::vector<int32_t>> encode_marked(std::string_view text,
                                             const TextMarkers& markers) const;

  // The text of a whole sequence. Ids that name no token (a padded lm_head has such rows) are
  // passed over. Incomplete UTF-8 becomes U+FFFD. Token by token: detokenizer.h.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // One more than the largest id of a token; the model's lm_head may have more rows.
  int32_t vocab_size() const { return static_cast<int32_t>(tokens_.size()); }
  bool has_token(int32_t id) const;
  bool is_special(int32_t id) const;
  bool is_byte(int32_t id) const;  // a byte of the byte fallback, "<0x0A>"

  // What the token adds to the text, as raw bytes (perhaps part of a character; for OpenAI's
  // `bytes`). Special tokens: their name. Unknown ids: empty.
  std::string_view token_bytes(int32_t id) const;
  // The same as text, for OpenAI's `token`: incomplete UTF-8 becomes U+FFFD.
  std::string token_text(int32_t id) const;

  // The id of a token by the name that the file gives it ("<|end|>", "</s>", "Ġthe").
  std::optional<int32_t> id_of(std::string_view token) const;
  // Ids of all special tokens, ascending.
  const std::vector<int32_t>& special_ids() const { return special_ids_; }
  // No token adds more bytes than this: n tokens hold at most n * max_token_bytes() bytes of text.
  size_t max_token_bytes() const { return max_token_bytes_; }
  // The text is not encoded to fewer tokens than this; 0 where the file's rules leave no bound. A
  // look at each byte, no more.
  size_t least_tokens(std::string_view text) const;
  const DecodePlan& decode_plan() const { return plan_; }

 private:
  explicit Tokenizer(RotaTokenizer* handle);
  Result<std::vector<int32_t>> encode_with(std::string_view text, int how, bool add_special_tokens,
                                           const TextMarkers& markers) const;
  const RotaToken* token(int32_t id) const;  // null: no such token

  RotaTokenizer* handle_;
  std::string_view bytes_;  // both borrowed from the handle
  std::span<const RotaToken> tokens_;
  std::vector<int32_t> special_ids_;
  size_t max_token_bytes_ = 0;
  size_t max_text_bytes_ = 0;       // that one token stands for; 0: no bound
  std::bitset<256> encoded_bytes_;  // that have a token; the others are dropped
  DecodePlan plan_;
};

}  // namespace rota
