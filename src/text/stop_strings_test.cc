#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace rota {
namespace {

struct Outcome {
  std::string text;
  std::optional<size_t> matched;
  bool operator==(const Outcome&) const = default;
};

// The contract, slowly: the match that ends first; of those the longest, of equal ones the first.
Outcome brute_force(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> best;
    for (size_t i = 0; i < stops.size(); ++i) {
      if (!std::string_view(text).substr(0, end).ends_with(stops[i])) continue;
      if (!best || stops[i].size() > stops[*best].size()) best = i;
    }
    if (best) return {text.substr(0, end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

// How much of `text`, which holds no whole stop string, may be shown: not its longest suffix that
// begins one.
size_t safe(std::string_view text, const std::vector<std::string>& stops) {
  for (size_t at = 0; at < text.size(); ++at) {
    for (const std::string& stop : stops) {
      if (stop.starts_with(text.substr(at))) return at;
    }
  }
  return text.size();
}

StopStrings make(const std::vector<std::string>& stops) {
  Result<StopStrings> made = StopStrings::make(stops);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(made).value();
}

TEST(StopStrings, HoldsBackWhatMayBeginAStop) {
  StopStrings stop = make({"\n\n", "User:"});
  EXPECT_EQ(stop.push("Hi.\n").text, "Hi.");
  EXPECT_EQ(stop.push("Us").text, "\n");
  EXPECT_EQ(stop.push("ers").text, "Users");
  const StopStrings::Step last = stop.push(" and User: me");
  EXPECT_EQ(last.text, " and ");
  EXPECT_EQ(last.matched, 1u);
  EXPECT_TRUE(stop.matched());
  EXPECT_EQ(stop.push("more").text, "");
  EXPECT_EQ(stop.finish(), "");
}

TEST(StopStrings, FinishGivesWhatWasHeld) {
  StopStrings stop = make({"<end>"});
  EXPECT_EQ(stop.push("a<en").text, "a");
  EXPECT_EQ(stop.finish(), "<en");
}

TEST(StopStrings, IncludedOnRequest) {
  Result<StopStrings> stop = StopStrings::make({"END"}, /*include_in_output=*/true);
  ASSERT_TRUE(stop.ok());
  EXPECT_EQ(stop->push("a E").text, "a ");
  EXPECT_EQ(stop->push("ND b").text, "END");
}

TEST(StopStrings, NoStopsPassEverything) {
  StopStrings stop = make({});
  EXPECT_EQ(stop.push("anything").text, "anything");
  EXPECT_EQ(stop.finish(), "");
}

TEST(StopStrings, EmptyAndHugeAreRefused) {
  const Result<StopStrings> empty = StopStrings::make({"a", ""});
  ASSERT_FALSE(empty.ok());
  EXPECT_EQ(empty.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(empty.status().message().find("stop[1]"), std::string::npos);
  EXPECT_FALSE(StopStrings::make({std::string(StopStrings::kMaxTotalBytes + 1, 'x')}).ok());
}

TEST(StopStrings, AHundredThousandStrings) {
  std::vector<std::string> stops;
  for (int i = 0; i < 100000; ++i) stops.push_back(fmt::format("s{}!", i));
  StopStrings stop = make(stops);
  const StopStrings::Step step = stop.push("s1 s12 s99999!");
  EXPECT_EQ(step.text, "s1 s12 ");
  EXPECT_EQ(step.matched, 99999u);
}

TEST(StopStrings, EqualsBruteForceInAnyPortions) {
  std::mt19937 random(1);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const auto word = [&](size_t letters, size_t max) {
    std::string out;
    for (size_t n = 1 + below(max); n > 0; --n) out += static_cast<char>('a' + below(letters));
    return out;
  };
  int matches = 0;
  for (int round = 0; round < 20000; ++round) {
    const size_t letters = 1 + below(3);
    std::vector<std::string> stops;
    for (size_t n = below(5); n > 0; --n) stops.push_back(word(letters, 6));
    const std::string text = word(letters + below(2), 30);

    StopStrings stop = make(stops);
    Outcome got;
    size_t at = 0;
    while (at < text.size()) {
      const std::string piece = text.substr(at, 1 + below(7));
      at += piece.size();
      const StopStrings::Step step = stop.push(piece);
      got.text += step.text;
      got.matched = step.matched ? step.matched : got.matched;
      if (!got.matched) {
        ASSERT_EQ(got.text, text.substr(0, safe(std::string_view(text).substr(0, at), stops)));
      }
    }
    got.text += stop.finish();
    const Outcome expected = brute_force(text, stops);
    ASSERT_EQ(got.text, expected.text) << text;
    ASSERT_EQ(got.matched.has_value(), expected.matched.has_value());
    if (got.matched) {
      ++matches;
      ASSERT_EQ(stops[*got.matched], stops[*expected.matched]);
    }
  }
  EXPECT_GT(matches, 1000);
}

}  // namespace
}  // namespace rota
