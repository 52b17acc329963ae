#include "engine/text_generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/tokenizer.h"
#include "text/utf8_stream.h"

namespace rota {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const Tokenizer> tokenizer() {
  static const auto loaded = Tokenizer::load(std::string(ROTA_SOURCE_DIR) +
                                             "/tests/goldens/tokenizers/spbpe/tokenizer.json")
                                 .value();
  return loaded;
}

std::vector<int32_t> ids_of(const std::string& text) {
  return tokenizer()->encode(text, {.special = Special::kAsText}).value();
}

// The outputs of a request whose tokens arrive `step` at a time.
std::vector<RequestOutput> outputs_of(const std::vector<int32_t>& ids, size_t step,
                                      FinishReason reason) {
  std::vector<RequestOutput> outputs;
  for (size_t at = 0; at < ids.size(); at += step) {
    RequestOutput& output = outputs.emplace_back();
    for (size_t i = at; i < std::min(at + step, ids.size()); ++i) {
      output.tokens.push_back({.id = ids[i]});
    }
  }
  outputs.back().finish_reason = reason;
  return outputs;
}

struct Streamed {
  std::string text;
  TextDelta last;
  size_t tokens = 0;
  int cancels = 0;
};

Streamed stream(const std::vector<RequestOutput>& outputs, const TextStreamOptions& options) {
  TextStream text = TextStream::make(tokenizer(), options).value();
  Streamed all;
  for (const RequestOutput& output : outputs) {
    TextDelta delta = text.add(output);
    EXPECT_TRUE(is_valid_utf8(delta.text));
    all.text += delta.text;
    all.tokens += delta.tokens;
    all.cancels += delta.cancel_request ? 1 : 0;
    if (delta.finish_reason != FinishReason::kNone) all.last = std::move(delta);
  }
  EXPECT_EQ(text.text(), all.text);
  EXPECT_TRUE(text.finished());
  return all;
}

const std::string kText = "Grüße aus Wien: 你好, naïve façade 🙂🙂 and so on, User: no more";

TEST(TextStream, TheSameTextStreamedAndNot) {
  const std::vector<int32_t> ids = ids_of(kText);
  for (const std::vector<std::string>& stop :
       {std::vector<std::string>{}, {"User:"}, {"🙂 and"}, {"o on,", "on, U"}, {"never there"}}) {
    const Streamed whole =
        stream(outputs_of(ids, ids.size(), FinishReason::kLength), {.stop = stop});
    for (const size_t step : {size_t{1}, size_t{2}, size_t{5}}) {
      const Streamed pieces = stream(outputs_of(ids, step, FinishReason::kLength), {.stop = stop});
      EXPECT_EQ(pieces.text, whole.text);
      EXPECT_EQ(pieces.last.finish_reason, whole.last.finish_reason);
      EXPECT_EQ(pieces.last.stop_string, whole.last.stop_string);
      EXPECT_EQ(pieces.tokens, whole.tokens);
    }
  }
}

TEST(TextStream, AStopStringEndsItAndAsksForCancellation) {
  const std::vector<int32_t> ids = ids_of(kText);
  const Streamed all =
      stream(outputs_of(ids, 1, FinishReason::kLength), {.stop = {"never", "User:"}});
  EXPECT_THAT(all.text, ::testing::EndsWith("and so on, "));
  EXPECT_EQ(all.last.finish_reason, FinishReason::kStop);
  EXPECT_EQ(all.last.stop_string, "User:");
  EXPECT_EQ(all.cancels, 1);
  EXPECT_LT(all.tokens, ids.size());
}

TEST(TextStream, AStopStringInTheLastOutputNeedsNoCancellation) {
  const std::vector<int32_t> ids = ids_of(kText);
  const Streamed all =
      stream(outputs_of(ids, ids.size(), FinishReason::kLength), {.stop = {"User:"}});
  EXPECT_EQ(all.last.finish_reason, FinishReason::kStop);
  EXPECT_EQ(all.cancels, 0);
}

TEST(TextStream, HeldBackTextComesAtTheEnd) {
  const std::vector<int32_t> ids = ids_of("so it ends with Use");
  const Streamed all = stream(outputs_of(ids, 1, FinishReason::kLength), {.stop = {"User:"}});
  EXPECT_THAT(all.text, HasSubstr("with Use"));
  EXPECT_EQ(all.last.finish_reason, FinishReason::kLength);
}

TEST(TextStream, TheTokenThatEndedItIsCountedButNotShown) {
  std::vector<int32_t> ids = ids_of("Hello");
  const std::vector<int32_t> end = ids_of(" world");
  ids.push_back(end.back());
  std::vector<RequestOutput> outputs = outputs_of(ids, 1, FinishReason::kStop);
  outputs.back().stop_token = ids.back();
  const Streamed all = stream(outputs, {});
  EXPECT_EQ(all.text, tokenizer()->decode(std::span(ids).first(ids.size() - 1), true));
  EXPECT_EQ(all.last.stop_token, ids.back());
  EXPECT_EQ(all.tokens, ids.size());
  const Streamed shown = stream(outputs, {.include_stop_in_text = true});
  EXPECT_EQ(shown.text, tokenizer()->decode(ids, true));
}

TEST(TextStream, HostileStopStringsAreRefused) {
  EXPECT_FALSE(TextStream::make(tokenizer(), {.stop = {""}}).ok());
  EXPECT_FALSE(TextStream::make(tokenizer(), {.stop = {std::string(2 << 20, 'x')}}).ok());
}

TEST(TextStream, AnErrorEndsTheText) {
  RequestOutput failed;
  failed.finish_reason = FinishReason::kError;
  failed.status = Status(StatusCode::kUnavailable, "gone");
  TextStream text = TextStream::make(tokenizer()).value();
  EXPECT_EQ(text.add(failed).finish_reason, FinishReason::kError);
  EXPECT_TRUE(text.finished());
  EXPECT_EQ(text.add(failed).finish_reason, FinishReason::kNone);
}

}  // namespace
}  // namespace rota
