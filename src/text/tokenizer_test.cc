#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <thread>

#include "text/detokenizer.h"
#include "text/test_support.h"
#include "text/utf8_stream.h"

namespace rota {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<int32_t>;

void expect_goldens(const Tokenizer& tokenizer, const Json& file) {
  const bool add_special = file["add_special_tokens"];
  ASSERT_EQ(file["goldens"].size(), file["count"].get<size_t>());
  for (const Json& row : file["goldens"]) {
    const std::string text = row["text"];
    const Ids ids = row["ids"];
    const Result<Ids> got = tokenizer.encode(text, {.add_special_tokens = add_special});
    ASSERT_TRUE(got.ok()) << got.status().message();
    EXPECT_EQ(*got, ids) << text;
    EXPECT_EQ(tokenizer.decode(ids, /*skip_special=*/false), row["decoded"]) << text;
    const std::string skipped = row.value("decoded_skip_special", row["decoded"]);
    EXPECT_EQ(tokenizer.decode(ids, /*skip_special=*/true), skipped) << text;
  }
  for (const Json& row : file["streaming"]) {
    const Ids ids = row["ids"];
    for (size_t n = 1; n <= ids.size(); ++n) {
      EXPECT_EQ(tokenizer.decode(std::span(ids).first(n), /*skip_special=*/false),
                row["prefixes"][n - 1]);
    }
  }
}

std::string message_of(std::string_view json) {
  const auto loaded = Tokenizer::from_json(json, "tokenizer.json");
  EXPECT_FALSE(loaded.ok());
  if (loaded.ok()) return "";
  EXPECT_TRUE(loaded.status().message().starts_with("tokenizer.json: "))
      << loaded.status().message();
  EXPECT_NE(loaded.status().code(), StatusCode::kInternal) << loaded.status().message();
  return loaded.status().message();
}

// A small byte-level tokenizer; `change` may damage it.
Json small() {
  return Json::parse(R"({"version": "1.0", "added_tokens": [
      {"id": 4, "content": "<|x|>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "ByteLevel",
    "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
     "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
     "vocab": {"a": 0, "b": 1, "ab": 2, "!": 3}, "merges": ["a b"]}})");
}

TEST(Tokenizer, GoldensOfByteLevelBpe) {
  expect_goldens(*test::o200k(),
                 test::read_json(test::goldens() / "tokenizers/o200k_harmony/goldens.json"));
}

TEST(Tokenizer, GoldensOfSentencePieceBpe) {
  expect_goldens(*test::spbpe(),
                 test::read_json(test::goldens() / "tokenizers/spbpe/goldens.json"));
}

TEST(Tokenizer, SpecialTextIsTextOnRequest) {
  for (const auto& tokenizer : {test::o200k(), test::spbpe()}) {
    for (int32_t id : tokenizer->special_ids()) {
      const std::string name(tokenizer->token_bytes(id));
      const std::string text = "a" + name + " " + name;
      EXPECT_EQ(std::ranges::count(*tokenizer->encode(text), id), 2) << name;
      const Ids plain = *tokenizer->encode(text, {.special = Special::kAsText});
      EXPECT_EQ(std::ranges::count(plain, id), 0) << name;
      EXPECT_EQ(tokenizer->decode(plain, /*skip_special=*/true), text);
    }
  }
}

TEST(Tokenizer, SpecialTextThatTheModelWouldFindItself) {
  // A WordLevel vocabulary holds "<s>" as a word: found without any added token.
  const Json json = Json::parse(R"({"version": "1.0", "added_tokens": [
      {"id": 1, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true}],
    "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null,
    "decoder": null, "model": {"type": "WordLevel", "unk_token": "<unk>",
    "vocab": {"<unk>": 0, "<s>": 1, "hi": 2}}})");
  const auto tokenizer = Tokenizer::from_json(json.dump(), "words");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(*(*tokenizer)->encode("hi <s> hi"), (Ids{2, 1, 2}));
  EXPECT_EQ(*(*tokenizer)->encode("hi <s> hi", {.special = Special::kAsText}), (Ids{2, 0, 0, 2}));
  EXPECT_EQ((*tokenizer)->decode(Ids{2, 1, 2}, /*skip_special=*/false), "hi <s> hi");
}

TEST(Tokenizer, TokenBytesAndNames) {
  const Tokenizer& o200k = *test::o200k();
  EXPECT_EQ(o200k.vocab_size(), 200019);
  EXPECT_EQ(o200k.id_of("<|end|>"), 200007);
  EXPECT_EQ(o200k.id_of("no such token"), std::nullopt);
  EXPECT_EQ(o200k.token_bytes(220), " ");
  EXPECT_TRUE(o200k.is_special(200007));
  EXPECT_FALSE(o200k.is_special(220));
  EXPECT_EQ(o200k.special_ids().size(), 21u);
  EXPECT_EQ(o200k.token_bytes(-1), "");
  EXPECT_EQ(o200k.token_bytes(1 << 30), "");

  const Tokenizer& spbpe = *test::spbpe();
  const std::optional<int32_t> byte = spbpe.id_of("<0xE4>");
  ASSERT_TRUE(byte.has_value());
  EXPECT_TRUE(spbpe.is_byte(*byte));
  EXPECT_EQ(spbpe.token_bytes(*byte), "\xE4");
  EXPECT_EQ(spbpe.token_text(*byte), "\xEF\xBF\xBD");
  EXPECT_EQ(spbpe.token_bytes(*spbpe.id_of("▁a")), " a");
}

TEST(Tokenizer, BytesOfTokensAreTheText) {
  const std::string text = "Hello 你好 👩‍🚀\n\n  x = 1\t";
  std::string bytes;
  const Ids ids = *test::o200k()->encode(text);
  for (int32_t id : ids) bytes += test::o200k()->token_bytes(id);
  EXPECT_EQ(bytes, text);
}

TEST(Tokenizer, ConcurrentEncodeGivesTheSame) {
  const auto tokenizer = test::o200k();
  const std::string text = "Many threads, one tokenizer: 你好, <|end|> and naïve façades.";
  const Ids expected = *tokenizer->encode(text);
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) count += *tokenizer->encode(text) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8OrTooLong) {
  const Tokenizer& tokenizer = *test::spbpe();
  EXPECT_EQ(tokenizer.encode("a\xFF").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(tokenizer.encode("\xED\xA0\x80").status().code(), StatusCode::kInvalidArgument);
  const std::string huge(Tokenizer::kMaxTextBytes + 1, 'a');
  EXPECT_EQ(tokenizer.encode(huge).status().code(), StatusCode::kInvalidArgument);
}

TEST(Tokenizer, AMegabyteWithoutABreak) {
  for (const char* unit : {"a", "A", " ", "\n", "你", "aB", "' "}) {
    std::string text;
    while (text.size() < (1u << 20)) text += unit;
    const Result<Ids> ids = test::o200k()->encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status().message();
    EXPECT_EQ(test::o200k()->decode(*ids, false), text);
  }
}

TEST(HostileTokenizer, FilesThatAreNotFiles) {
  const test::TempDir dir;
  EXPECT_EQ(Tokenizer::load(dir.path() / "none.json").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Tokenizer::load(dir.path()).status().code(), StatusCode::kInvalidArgument);
  dir.write("huge.json", "");
  std::filesystem::resize_file(dir.path() / "huge.json", Tokenizer::kMaxFileBytes + 1);
  const auto huge = Tokenizer::load(dir.path() / "huge.json");
  EXPECT_EQ(huge.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(huge.status().message().find("huge.json"), std::string::npos);
}

TEST(HostileTokenizer, JsonThatIsNone) {
  for (const char* json :
       {"", "null", "[]", "{}", "{\"version\": \"1.0\"}", "\xFF\xFE", "{\"model\": 1}"}) {
    message_of(json);
  }
  message_of(std::string(100000, '['));
  std::string text = small().dump();
  for (size_t n = 0; n < text.size(); n += 7) message_of(text.substr(0, n));
}

TEST(HostileTokenizer, NotANumber) {
  std::string text = small().dump();
  text.replace(text.find("\"dropout\":null"), 14, "\"dropout\":NaN");
  message_of(text);
}

TEST(HostileTokenizer, BadMerges) {
  const std::vector<Json> merges = {
      Json::parse(R"(["a"])"),          Json::parse(R"(["a b c"])"),  Json::parse(R"(["a zz"])"),
      Json::parse(R"(["b a"])"),        Json::parse(R"([["a"]])"),    Json::parse(R"([["a", 1]])"),
      Json::parse(R"(["a b", 3])"),     Json::parse(R"({"a": "b"})"), Json::parse(R"("a b")"),
      Json::parse(R"([["a","b","c"]])")};
  for (const Json& bad : merges) {
    Json json = small();
    json["model"]["merges"] = bad;
    message_of(json.dump());
  }
  Json json = small();  // cuts into the middle of a character, or behind the token's end
  json["model"]["continuing_subword_prefix"] = "##########";
  json["model"]["vocab"]["é"] = 3;
  json["model"]["merges"] = Json::parse(R"([["a", "é"]])");
  message_of(json.dump());
}

TEST(HostileTokenizer, DuplicateIds) {
  Json json = small();
  json["model"]["vocab"]["b"] = 0;
  EXPECT_NE(message_of(json.dump()).find("both have id"), std::string::npos);
}

TEST(HostileTokenizer, AddedTokenWithAnotherId) {
  Json json = small();
  json["added_tokens"][0]["id"] = 7;
  EXPECT_NE(message_of(json.dump()).find("declares id 7"), std::string::npos);
}

TEST(HostileTokenizer, IdsOutOfRange) {
  for (const Json& id : {Json(-1), Json(1 << 24), Json(4294967295u), Json(4294967296), Json(1.5)}) {
    Json json = small();
    json["model"]["vocab"]["b"] = id;
    message_of(json.dump());
  }
}

TEST(HostileTokenizer, DropoutWouldMakeEncodingRandom) {
  Json json = small();
  json["model"]["dropout"] = 0.5;
  EXPECT_NE(message_of(json.dump()).find("dropout"), std::string::npos);
}

TEST(HostileTokenizer, DecoderThatCannotStream) {
  Json json = small();
  json["decoder"] = {
      {"type", "CTC"}, {"pad_token", "p"}, {"word_delimiter_token", "|"}, {"cleanup", true}};
  const auto loaded = Tokenizer::from_json(json.dump(), "tokenizer.json");
  EXPECT_EQ(loaded.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(loaded.status().message().find("CTC"), std::string::npos);
}

TEST(HostileTokenizer, TruncationAndPaddingOfTheFileAreIgnored) {
  Json json = small();
  json["truncation"] = {
      {"direction", "Right"}, {"max_length", 1}, {"strategy", "LongestFirst"}, {"stride", 0}};
  json["padding"] = {{"strategy", {{"Fixed", 9}}},
                     {"direction", "Right"},
                     {"pad_to_multiple_of", nullptr},
                     {"pad_id", 0},
                     {"pad_type_id", 0},
                     {"pad_token", "a"}};
  const auto tokenizer = Tokenizer::from_json(json.dump(), "tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(*(*tokenizer)->encode("ab!a"), (Ids{2, 3, 0}));
  EXPECT_EQ(*(*tokenizer)->encode("ab!a", {.add_special_tokens = true}), (Ids{2, 3, 0}));
}

TEST(HostileTokenizer, NestedQuantifierRegexEnds) {
  Json json = small();
  json["pre_tokenizer"] = Json::parse(R"({"type": "Split", "pattern": {"Regex": "(a+)+$"},
                                          "behavior": "Isolated", "invert": false})");
  const auto tokenizer = Tokenizer::from_json(json.dump(), "tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_TRUE((*tokenizer)->encode("aab").ok());
  const Result<Ids> ids = (*tokenizer)->encode(std::string(200, 'a') + "b");
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(ids.status().message().find("regular expression"), std::string::npos);
}

TEST(HostileTokenizer, BadRegex) {
  for (const char* regex : {"(", "[z-a]", "\\p{NoSuch}"}) {
    Json json = small();
    json["pre_tokenizer"] = {{"type", "Split"},
                             {"pattern", {{"Regex", regex}}},
                             {"behavior", "Isolated"},
                             {"invert", false}};
    message_of(json.dump());
  }
}

// The bound holds for texts that need the fewest tokens: repeated tokens, and all of the goldens.
void expect_bound(const Tokenizer& tokenizer) {
  ASSERT_GT(tokenizer.least_tokens(std::string(1000, 'a')), 0u);
  std::vector<std::string> texts = {std::string(5000, ' '), std::string(5000, '\n'), "", "a"};
  for (int32_t id = 0; id < tokenizer.vocab_size(); id += 7) {
    texts.push_back(tokenizer.token_text(id) + tokenizer.token_text(id));
  }
  std::string bars;
  for (int i = 0; i < 1000; ++i) bars += "\u2581";  // SentencePiece's space, as text
  texts.push_back(bars);
  for (const std::string& text : texts) {
    const Result<Ids> ids = tokenizer.encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status().message();
    EXPECT_GE(ids->size(), tokenizer.least_tokens(text)) << text.substr(0, 100);
  }
}

std::string utf8(uint32_t c) {
  const auto continued = [&](int shift) { return static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | (c >> 6)), continued(0)};
  if (c < 0x10000) return {static_cast<char>(0xE0 | (c >> 12)), continued(6), continued(0)};
  return {static_cast<char>(0xF0 | (c >> 18)), continued(12), continued(6), continued(0)};
}

// What the bound takes for granted: a split that keeps only what it finds finds every character.
TEST(LeastTokens, O200kDropsNoCharacter) {
  std::string text;
  for (uint32_t c = 1; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    text += utf8(c);
    if (c % 3 == 0) text += (c % 2 == 0) ? "a" : "\n";  // in company and alone
    if (text.size() < 100'000 && c != 0x10FFFF) continue;
    const Result<Ids> ids = test::o200k()->encode(text, {.special = Special::kAsText});
    ASSERT_TRUE(ids.ok()) << ids.status().message();
    ASSERT_EQ(test::o200k()->decode(*ids, /*skip_special=*/false), text) << "before " << c;
    text.clear();
  }
}

TEST(LeastTokens, NoTextHasFewer) {
  expect_bound(*test::o200k());
  expect_bound(*test::spbpe());
}

// A byte-level vocabulary without tokens for some bytes drops them in silence.
TEST(LeastTokens, BytesWithoutATokenDoNotCount) {
  Json json = small();
  json["pre_tokenizer"] = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  const auto loaded = Tokenizer::from_json(json.dump(), "tokenizer.json");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const std::string text = std::string(1000, 'a') + std::string(5000, 'c');
  EXPECT_EQ((*loaded)->encode(text)->size(), 1000u);
  EXPECT_GT((*loaded)->least_tokens(text), 0u);
  EXPECT_LE((*loaded)->least_tokens(text), 1000u / std::string("<|x|>").size());
  json["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ((*Tokenizer::from_json(json.dump(), "tokenizer.json"))->least_tokens(text), 0u);
}

TEST(LeastTokens, UnknownWhereTextMayBeDropped) {
  const Json complete = test::read_json(test::goldens() / "tokenizers/spbpe/tokenizer.json");
  const auto least = [](const Json& json) {
    const auto loaded = Tokenizer::from_json(json.dump(), "tokenizer.json");
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    return loaded.ok() ? (*loaded)->least_tokens(std::string(1000, 'a')) : 0;
  };
  EXPECT_GT(least(complete), 0u);
  Json changed = complete;
  changed["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  EXPECT_EQ(least(changed), 0u);
  changed = complete;
  changed["pre_tokenizer"] = {{"type", "WhitespaceSplit"}};
  EXPECT_EQ(least(changed), 0u);
  changed = complete;
  changed["model"]["byte_fallback"] = false;
  EXPECT_EQ(least(changed), 0u);
  changed = complete;
  changed["added_tokens"].front()["lstrip"] = true;
  EXPECT_EQ(least(changed), 0u);
  EXPECT_EQ(least(small()), 0u);  // has no token for most bytes
  changed = complete;
  const size_t plain = least(complete);
  changed["normalizer"] = {{"type", "NFC"}};
  EXPECT_LT(least(changed), plain);
}

}  // namespace
}  // namespace rota
