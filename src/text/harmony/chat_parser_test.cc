#include "text/harmony/chat_parser.h"

#include <gtest/gtest.h>

#include <random>

#include "text/test_support.h"

namespace rota::harmony {
namespace {

using Kind = ChatDelta::Kind;
using Ids = std::vector<int32_t>;

struct Answer {
  std::string reasoning, content;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  std::string finish_reason;

  bool operator==(const Answer&) const = default;
  friend void PrintTo(const Answer& a, std::ostream* out) {
    *out << "reasoning '" << a.reasoning << "' content '" << a.content << "'";
    for (const auto& [name, arguments] : a.calls) *out << " " << name << "(" << arguments << ")";
    *out << " " << a.finish_reason;
  }
};

class Collector {
 public:
  void take(const std::vector<ChatDelta>& deltas) {
    for (const ChatDelta& delta : deltas) {
      EXPECT_FALSE(delta.text.empty());
      EXPECT_TRUE(is_valid_utf8(delta.text));
      switch (delta.kind) {
        case Kind::kReasoning:
          answer.reasoning += delta.text;
          break;
        case Kind::kContent:
          answer.content += delta.text;
          break;
        case Kind::kToolCallStart:
          EXPECT_EQ(delta.tool_index, static_cast<int>(answer.calls.size()));
          answer.calls.emplace_back(delta.text, "");
          break;
        case Kind::kToolCallArguments:
          ASSERT_LT(static_cast<size_t>(delta.tool_index), answer.calls.size());
          answer.calls[static_cast<size_t>(delta.tool_index)].second += delta.text;
          break;
      }
    }
  }
  Answer answer;
};

Answer parse(const Ids& ids, std::string_view reason = "stop") {
  HarmonyChatParser parser(test::o200k(), *Vocabulary::of(*test::o200k()));
  Collector collector;
  for (int32_t id : ids) collector.take(parser.push(id));
  const ChatEnd end = parser.finish(reason);
  collector.take(end.deltas);
  collector.answer.finish_reason = end.finish_reason;
  return collector.answer;
}

Answer parse(const std::string& text, std::string_view reason = "stop") {
  return parse(*test::o200k()->encode(text), reason);
}

TEST(HarmonyChat, ReasoningThenContent) {
  EXPECT_EQ(parse("<|channel|>analysis<|message|>Sum.<|end|><|start|>assistant<|channel|>final"
                  "<|message|>4 你好<|return|>"),
            (Answer{"Sum.", "4 你好", {}, "stop"}));
}

TEST(HarmonyChat, RecipientBehindTheChannel) {
  EXPECT_EQ(
      parse("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\":1}<|call|>"),
      (Answer{"", "", {{"f", "{\"x\":1}"}}, "tool_calls"}));
  EXPECT_EQ(parse("<|channel|>commentary to=functions.f json<|message|>{}<|call|>"),
            (Answer{"", "", {{"f", "{}"}}, "tool_calls"}));
}

TEST(HarmonyChat, RecipientInTheRole) {
  EXPECT_EQ(parse(" to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}<|call|>"),
            (Answer{"", "", {{"f", "{}"}}, "tool_calls"}));
  EXPECT_EQ(parse("<|channel|>analysis<|message|>a<|end|><|start|>assistant "
                  "to=functions.g<|channel|>commentary<|message|>{}<|call|>"),
            (Answer{"a", "", {{"g", "{}"}}, "tool_calls"}));
}

TEST(HarmonyChat, RecipientOnAnyChannel) {
  for (const char* channel : {"analysis", "commentary", "final"}) {
    EXPECT_EQ(parse(std::string("<|channel|>") + channel + " to=functions.f<|message|>{}<|call|>"),
              (Answer{"", "", {{"f", "{}"}}, "tool_calls"}));
  }
}

TEST(HarmonyChat, SeveralCalls) {
  EXPECT_EQ(parse("<|channel|>commentary to=functions.f<|message|>{}<|call|><|start|>assistant"
                  "<|channel|>commentary to=functions.g<|message|>1<|call|>"),
            (Answer{"", "", {{"f", "{}"}, {"g", "1"}}, "tool_calls"}));
}

TEST(HarmonyChat, CallCutByTheLimitIsLength) {
  EXPECT_EQ(parse("<|channel|>commentary to=functions.f<|message|>{\"a\"", "length"),
            (Answer{"", "", {{"f", "{\"a\""}}, "length"}));
}

TEST(HarmonyChat, ArgumentsThatAreNotJson) {
  EXPECT_EQ(parse("<|channel|>commentary to=functions.f<|message|>print(1)<|call|>"),
            (Answer{"", "", {{"f", "print(1)"}}, "tool_calls"}));
}

TEST(HarmonyChat, CommentaryWithoutRecipientIsContent) {
  EXPECT_EQ(parse("<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant"
                  "<|channel|>final<|message|> Found.<|return|>"),
            (Answer{"", "I will look. Found.", {}, "stop"}));
}

TEST(HarmonyChat, NoHeaderAtAll) {
  EXPECT_EQ(parse("Hello there"), (Answer{"", "Hello there", {}, "stop"}));
  EXPECT_EQ(parse("<|message|>Hello<|return|>"), (Answer{"", "Hello", {}, "stop"}));
  EXPECT_EQ(parse("final answer"), (Answer{"", "final answer", {}, "stop"}));
}

TEST(HarmonyChat, TextDirectlyAfterEnd) {
  EXPECT_EQ(parse("<|channel|>analysis<|message|>a<|end|>The answer is 4.<|return|>"),
            (Answer{"a", "The answer is 4.", {}, "stop"}));
}

TEST(HarmonyChat, MissingStart) {
  EXPECT_EQ(
      parse(
          "<|channel|>analysis<|message|>a<|end|>assistant<|channel|>final<|message|>4<|return|>"),
      (Answer{"a", "4", {}, "stop"}));
  EXPECT_EQ(parse("<|channel|>analysis<|message|>a<|end|><|channel|>final<|message|>4<|return|>"),
            (Answer{"a", "4", {}, "stop"}));
}

TEST(HarmonyChat, MissingEnd) {
  EXPECT_EQ(parse("<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>4"),
            (Answer{"a", "4", {}, "stop"}));
  EXPECT_EQ(parse("<|channel|>analysis<|message|>a<|channel|>final<|message|>4"),
            (Answer{"a", "4", {}, "stop"}));
}

TEST(HarmonyChat, TextInTheHeader) {
  EXPECT_EQ(parse("<|channel|>analysis<|message|>a<|end|><|start|>assistant I call "
                  "to=functions.f<|channel|>commentary<|message|>{}<|call|>"),
            (Answer{"a", "", {{"f", "I call{}"}}, "tool_calls"}));
  EXPECT_EQ(parse("<|channel|>final some words here<|message|>text<|return|>"),
            (Answer{"", "some words heretext", {}, "stop"}));
}

TEST(HarmonyChat, MissingMessage) {
  EXPECT_EQ(parse("<|channel|>final The answer.<|return|>"),
            (Answer{"", " The answer.", {}, "stop"}));
  EXPECT_EQ(parse("<|channel|>analysis Thinking hard"), (Answer{" Thinking hard", "", {}, "stop"}));
}

TEST(HarmonyChat, DoubledAndGarbledChannels) {
  const auto final_of = [](const std::string& header) {
    return parse(header + "<|message|>x<|return|>");
  };
  const Answer content{"", "x", {}, "stop"}, reasoning{"x", "", {}, "stop"};
  EXPECT_EQ(final_of("<|channel|>finalfinal"), content);
  EXPECT_EQ(final_of("<|channel|>final<|channel|>final"), content);
  EXPECT_EQ(final_of("<|channel|>analysis<|channel|>final"), content);
  EXPECT_EQ(final_of("<|channel|>analysisfinal"), content);
  EXPECT_EQ(final_of("<|channel|>analysis final"), content);
  EXPECT_EQ(final_of("<|channel|>finalization"), content);
  EXPECT_EQ(final_of("<|channel|>comment"), content);
  EXPECT_EQ(final_of("<|channel|>nonsense"), content);
  EXPECT_EQ(final_of("<|channel|>"), content);
  EXPECT_EQ(final_of("<|channel|>analysisanalysis"), reasoning);
  EXPECT_EQ(final_of("<|channel|>analysis<|channel|>analysis"), reasoning);
  EXPECT_EQ(final_of("<|channel|>analys"), reasoning);
  EXPECT_EQ(final_of("<|start|>assistantfinal"), content);
  EXPECT_EQ(final_of("<|start|>assistantanalysis"), reasoning);
  EXPECT_EQ(final_of("<|channel|>final<|message|>"), content);
}

TEST(HarmonyChat, RecipientGluedToTheChannel) {
  EXPECT_EQ(parse("<|channel|>commentaryto=functions.f<|message|>{}<|call|>"),
            (Answer{"", "", {{"f", "{}"}}, "tool_calls"}));
  EXPECT_EQ(parse("<|channel|>commentary to= functions.f<|message|>{}<|call|>"),
            (Answer{"", "", {{"f", "{}"}}, "tool_calls"}));
}

TEST(HarmonyChat, OtherSpeakersAreContent) {
  EXPECT_EQ(parse("<|channel|>final<|message|>a<|end|><|start|>functions.f to=assistant<|channel|>"
                  "commentary<|message|>{\"made\":\"up\"}<|end|>"),
            (Answer{"", "a{\"made\":\"up\"}", {}, "stop"}));
}

TEST(HarmonyChat, EndlessHeaderBecomesText) {
  std::string words;
  for (int i = 0; i < 2000; ++i) words += " word";
  EXPECT_EQ(parse("<|channel|>" + words).content, words);
  EXPECT_EQ(parse("<|start|>assistant" + words).content, words);
}

TEST(HarmonyChat, CutInTheMiddleOfACharacter) {
  Ids ids = *test::o200k()->encode("<|channel|>final<|message|>ok 𠮷");
  ids.pop_back();
  EXPECT_EQ(parse(ids, "length"), (Answer{"", "ok \xEF\xBF\xBD", {}, "length"}));
}

TEST(HarmonyChat, CountsReasoningTokens) {
  HarmonyChatParser parser(test::o200k(), *Vocabulary::of(*test::o200k()));
  const Ids ids = *test::o200k()->encode(
      "<|channel|>analysis<|message|>one two three<|end|><|start|>assistant<|channel|>final"
      "<|message|>four");
  for (int32_t id : ids) (void)parser.push(id);
  EXPECT_GE(parser.reasoning_tokens(), 3);
  EXPECT_LE(parser.reasoning_tokens(), 4);
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> out(1);
  for (char c : text) {
    if (c == ' ' || c == '\n' || c == '\t' || c == '\r') {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  std::erase(out, std::string());
  return out;
}

// Random tokens, half of them markup. The text of messages must come out in order and unchanged;
// every word of a header must come out, or be part of an understood header.
TEST(HarmonyGarbage, NothingIsLost) {
  const auto tokenizer = test::o200k();
  const Vocabulary v = *Vocabulary::of(*tokenizer);
  const Ids marks = {v.start, v.channel, v.message, v.end, v.return_, v.call, v.constrain};
  Ids words;
  for (const char* text :
       {"assistant", "analysis", "final", "commentary", " to=functions.f", " json", "Hello",
        " world", "\n\n", "你", "user", " to", "=", "anal", "x"}) {
    const Ids ids = *tokenizer->encode(text);
    words.insert(words.end(), ids.begin(), ids.end());
  }
  std::mt19937 random(11);
  const auto pick = [&](const Ids& from) { return from[random() % from.size()]; };
  for (int round = 0; round < 20000; ++round) {
    Ids ids(1 + random() % 24);
    for (int32_t& id : ids) id = random() % 5 < 2 ? pick(marks) : pick(words);

    Stream stream(tokenizer, v);
    std::string shown, understood;
    const auto take = [&](const std::vector<Event>& events) {
      for (const Event& event : events) {
        shown += event.text;
        understood += event.header.role + " to=" + event.header.recipient + " " +
                      event.header.channel_name + " " + event.header.content_type + " ";
      }
    };
    // The reference: text behind <|message|> up to the next mark that ends it, and all other words.
    std::vector<std::string> bodies(1);
    std::string headers;
    bool in_body = false;
    for (int32_t id : ids) {
      take(stream.push(id));
      const bool is_mark = std::ranges::find(marks, id) != marks.end();
      if (!is_mark) {
        (in_body ? bodies.back() : headers) += tokenizer->token_bytes(id);
      } else if (id == v.message) {
        in_body = true;
      } else if (id != v.constrain) {
        headers += ' ';
        in_body = false;
        bodies.emplace_back();
      }
    }
    take(stream.finish());
    size_t at = 0;
    for (const std::string& body : bodies) {
      const size_t found = shown.find(body, at);
      ASSERT_NE(found, std::string::npos) << tokenizer->decode(ids, false) << "\n" << shown;
      at = found + body.size();
    }
    for (const std::string& word : words_of(headers)) {
      const bool kept = shown.find(word) != std::string::npos ||
                        understood.find(word) != std::string::npos || may_be_header(word) ||
                        read_header({.after = word, .has_channel = true}).leftover.empty();
      ASSERT_TRUE(kept) << word << " in " << tokenizer->decode(ids, false) << "\n" << shown;
    }
  }
}

TEST(HarmonyGarbage, AnyIdsAtAll) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    Ids ids(64);
    for (int32_t& id : ids) {
      id = random() % 4 == 0 ? static_cast<int32_t>(199990 + random() % 40)
                             : static_cast<int32_t>(random());
    }
    parse(ids);  // Collector checks what comes out
  }
}

}  // namespace
}  // namespace rota::harmony
