#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "platform/read_file.h"
#include "text/detokenizer.h"
#include "text/ffi.h"
#include "text/utf8_stream.h"

namespace rota {

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(
    const std::filesystem::path& tokenizer_json) {
  ROTA_ASSIGN_OR_RETURN(const std::string json, read_file(tokenizer_json, kMaxFileBytes));
  return from_json(json, tokenizer_json.string());
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_json(std::string_view json,
                                                              std::string_view name) {
  RotaTokenizer* handle = nullptr;
  RotaBuffer message{};
  const RotaTextCode code = rota_tokenizer_load(ffi::view(json), &handle, &message);
  if (code != kRotaTextOk) return ffi::failure(code, name, ffi::take(message));
  return std::shared_ptr<const Tokenizer>(new Tokenizer(handle));
}

Tokenizer::Tokenizer(RotaTokenizer* handle) : handle_(handle) {
  const RotaTokenTable table = rota_tokenizer_table(handle_);
  tokens_ = {table.tokens, table.count};
  size_t total = 0;
  for (int32_t id = 0; id < vocab_size(); ++id) {
    const RotaToken& entry = tokens_[static_cast<size_t>(id)];
    total += entry.size;
    max_token_bytes_ = std::max<size_t>(max_token_bytes_, entry.size);
    if (entry.special != 0) special_ids_.push_back(id);
  }
  bytes_ = {table.bytes, total};
  max_text_bytes_ = table.max_text_bytes;
  for (const RotaToken& entry : tokens_) {
    if (entry.size != 1 || entry.special != 0) continue;
    encoded_bytes_.set(static_cast<unsigned char>(bytes_[entry.begin]));
  }
  plan_ = {.byte_fallback = table.byte_fallback != 0,
           .strip_leading_spaces = table.strip_leading_spaces,
           .strip_only_first_token = table.strip_only_first_token != 0,
           .space_between_tokens = table.space_between_tokens != 0};
}

size_t Tokenizer::least_tokens(std::string_view text) const {
  if (max_text_bytes_ == 0) return 0;
  const auto encoded = static_cast<size_t>(std::ranges::count_if(
      text, [&](char c) { return encoded_bytes_[static_cast<unsigned char>(c)]; }));
  return (encoded + max_text_bytes_ - 1) / max_text_bytes_;
}

Tokenizer::~Tokenizer() { rota_tokenizer_free(handle_); }

const RotaToken* Tokenizer::token(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return nullptr;
  const RotaToken& entry = tokens_[static_cast<size_t>(id)];
  return entry.present != 0 ? &entry : nullptr;
}

bool Tokenizer::has_token(int32_t id) const { return token(id) != nullptr; }

bool Tokenizer::is_special(int32_t id) const {
  const RotaToken* entry = token(id);
  return entry != nullptr && entry->special != 0;
}

bool Tokenizer::is_byte(int32_t id) const {
  const RotaToken* entry = token(id);
  return entry != nullptr && entry->byte != 0;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  const RotaToken* entry = token(id);
  return entry != nullptr ? bytes_.substr(entry->begin, entry->size) : std::string_view();
}

std::string Tokenizer::token_text(int32_t id) const {
  std::string out;
  Utf8Stream utf8;
  utf8.append(token_bytes(id), out);
  utf8.finish(out);
  return out;
}

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  const int32_t id = rota_tokenizer_id_of(handle_, ffi::view(token));
  if (id < 0) return std::nullopt;
  return id;
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  const int how = options.special == Special::kParse ? kRotaSpecialParse : kRotaSpecialAsText;
  return encode_with(text, how, options.add_special_tokens, {});
}

Result<std::vector<int32_t>> Tokenizer::encode_marked(std::string_view text,
                                                      const TextMarkers& markers) const {
  return encode_with(text, kRotaSpecialChat, /*add_special_tokens=*/false, markers);
}

Result<std::vector<int32_t>> Tokenizer::encode_with(std::string_view text, int how,
                                                    bool add_special_tokens,
                                                    const TextMarkers& markers) const {
  if (text.size() > kMaxTextBytes) {
    return invalid_argument("the text is {} bytes long; expected at most {}", text.size(),
                            kMaxTextBytes);
  }
  static_assert(sizeof(char32_t) == sizeof(uint32_t));
  const std::vector<uint32_t> originals(markers.originals.begin(), markers.originals.end());
  const RotaEncodeOptions options{how,
                                  static_cast<uint8_t>(add_special_tokens),
                                  {markers.first, originals.data(), originals.size()}};
  RotaIds ids{};
  RotaBuffer message{};
  const RotaTextCode code =
      rota_tokenizer_encode(handle_, ffi::view(text), &options, &ids, &message);
  if (code != kRotaTextOk) return ffi::failure(code, "tokenizer", ffi::take(message));
  std::vector<int32_t> out(ids.data, ids.data + ids.size);
  rota_text_free_ids(ids);
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  if (!plan_.byte_fallback) {
    // A shared_ptr that does not own: the stream lives only here.
    const std::shared_ptr<const Tokenizer> self(std::shared_ptr<const Tokenizer>(), this);
    Detokenizer stream(self, {.skip_special = skip_special});
    for (int32_t id : ids) out += stream.push(id);
    return out + stream.finish();
  }
  // The tokenizers library looks at a run of byte tokens as a whole: if any part of it is not
  // UTF-8, each of its bytes becomes U+FFFD.
  std::string run;
  const auto end_run = [&] {
    if (is_valid_utf8(run)) {
      out += run;
    } else {
      for (size_t i = 0; i < run.size(); ++i) out += "\xEF\xBF\xBD";
    }
    run.clear();
  };
  for (int32_t id : ids) {
    if (!has_token(id) || (skip_special && is_special(id))) continue;
    if (is_byte(id)) {
      run += token_bytes(id);
    } else {
      end_run();
      out += token_bytes(id);
    }
  }
  end_run();
  const size_t spaces = std::min(out.find_first_not_of(' '), out.size());
  return out.substr(std::min<size_t>(spaces, plan_.strip_leading_spaces));
}

}  // namespace rota
