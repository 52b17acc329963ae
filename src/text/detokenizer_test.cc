#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "text/test_support.h"

namespace rota {
namespace {

using Ids = std::vector<int32_t>;

std::string stream(const std::shared_ptr<const Tokenizer>& tokenizer, const Ids& ids,
                   DetokenizerOptions options) {
  Detokenizer detokenizer(tokenizer, options);
  std::string out;
  for (int32_t id : ids) {
    const std::string piece = detokenizer.push(id);
    EXPECT_TRUE(is_valid_utf8(piece)) << id;
    out += piece;
  }
  return out + detokenizer.finish();
}

// True if decode replaces bytes of a run that the stream keeps: some run of byte tokens is invalid.
bool has_invalid_run(const Tokenizer& tokenizer, const Ids& ids, bool skip_special) {
  std::string run;
  for (int32_t id : ids) {
    if (!tokenizer.has_token(id) || (skip_special && tokenizer.is_special(id))) continue;
    if (tokenizer.is_byte(id)) {
      run += tokenizer.token_bytes(id);
    } else {
      if (!is_valid_utf8(run)) return true;
      run.clear();
    }
  }
  return !is_valid_utf8(run);
}

TEST(Detokenizer, SplitCharacterWaitsForItsEnd) {
  const auto tokenizer = test::o200k();
  const Ids ids = *tokenizer->encode("𠮷");
  ASSERT_GT(ids.size(), 1u);
  Detokenizer detokenizer(tokenizer);
  for (size_t i = 0; i + 1 < ids.size(); ++i) EXPECT_EQ(detokenizer.push(ids[i]), "");
  EXPECT_EQ(detokenizer.push(ids.back()), "𠮷");
  EXPECT_EQ(detokenizer.push(ids.front()), "");
  EXPECT_EQ(detokenizer.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, FirstSpaceOfSentencePiece) {
  const auto tokenizer = test::spbpe();
  const Ids ids = *tokenizer->encode("a b");
  EXPECT_EQ(stream(tokenizer, ids, {}), "a b");
  EXPECT_EQ(stream(tokenizer, ids, {.continues_text = true}), " a b");
}

TEST(Detokenizer, SpecialTokensAreSkippedOrNamed) {
  const auto tokenizer = test::o200k();
  const Ids ids = *tokenizer->encode("<|start|>user<|message|>Hi<|end|>");
  EXPECT_EQ(stream(tokenizer, ids, {}), "userHi");
  EXPECT_EQ(stream(tokenizer, ids, {.skip_special = false}), "<|start|>user<|message|>Hi<|end|>");
}

TEST(Detokenizer, UnknownIdsAreNothing) {
  EXPECT_EQ(stream(test::o200k(), {-5, 200019, 2147483647, 64}, {}), "a");
}

TEST(Detokenizer, InvalidBytesOfByteFallbackOnly) {
  const auto tokenizer = test::spbpe();
  const int32_t e4 = *tokenizer->id_of("<0xE4>"), bd = *tokenizer->id_of("<0xBD>"),
                a0 = *tokenizer->id_of("<0xA0>");
  // 你, then a character that is cut off: the stream has shown 你 already, decode takes it back.
  EXPECT_EQ(stream(tokenizer, {e4, bd, a0, e4, bd}, {}), "你\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(stream(tokenizer, {e4, bd}, {}), tokenizer->decode(Ids{e4, bd}, true));
}

TEST(Detokenizer, EqualsDecodeOverRandomIds) {
  std::mt19937 random(7);
  for (const auto& tokenizer : {test::o200k(), test::spbpe()}) {
    int compared = 0;
    for (int round = 0; round < 3000; ++round) {
      Ids ids(1 + random() % 24);
      for (int32_t& id : ids) {
        // Half of them from the low ids: single bytes, byte fallback, special tokens.
        const auto range =
            static_cast<uint32_t>(random() % 2 == 0 ? 270 : tokenizer->vocab_size() + 9);
        id = static_cast<int32_t>(random() % range);
      }
      for (bool skip : {false, true}) {
        if (tokenizer->decode_plan().byte_fallback && has_invalid_run(*tokenizer, ids, skip))
          continue;
        ++compared;
        ASSERT_EQ(stream(tokenizer, ids, {.skip_special = skip}), tokenizer->decode(ids, skip));
      }
    }
    EXPECT_GT(compared, 500);
  }
}

TEST(Utf8Stream, EveryPortionGivesTheSame) {
  const std::string text =
      "a\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x98\x80\xFF\xC0\xAF\xE0\x80\x80\xED\xA0\x80\xF4\x90\x80\x80"
      "\xE4\xBDz\xF0\x9F";
  for (const auto replace : {Utf8Stream::Replace::kEachSequence, Utf8Stream::Replace::kEachByte}) {
    Utf8Stream whole(replace);
    std::string expected;
    whole.append(text, expected);
    whole.finish(expected);
    EXPECT_TRUE(is_valid_utf8(expected));
    for (size_t portion = 1; portion < 9; ++portion) {
      Utf8Stream stream(replace);
      std::string got;
      for (size_t at = 0; at < text.size(); at += portion) {
        stream.append(std::string_view(text).substr(at, portion), got);
        EXPECT_LE(stream.held(), 3u);
        EXPECT_TRUE(is_valid_utf8(got));
      }
      stream.finish(got);
      EXPECT_EQ(got, expected);
    }
  }
}

TEST(Utf8Stream, OneReplacementForEachMaximalPart) {
  Utf8Stream stream;
  std::string out;
  stream.append(
      "\xE4\xBD"
      "a\xF0\x9F\x98"
      "b\x80\x80",
      out);
  EXPECT_EQ(out,
            "\xEF\xBF\xBD"
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD\xEF\xBF\xBD");
}

}  // namespace
}  // namespace rota
