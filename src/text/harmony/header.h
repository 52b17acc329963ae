// The header of a generated harmony message: who speaks, to whom, on which channel.
//
// Contract: any text is a header; what is not understood comes back as `leftover`, so that nothing
// is lost.
//   read_header({.before = "assistant to=functions.f", .after = "commentary json", ...})
//   read_header({.after = "analysisfinal", ...}).channel == Channel::kFinal   (garbled: the last one named)
#pragma once

#include <string>
#include <string_view>

namespace rota::harmony {

enum class Channel { kNone, kAnalysis, kCommentary, kFinal };

struct Header {
  std::string role = "assistant";
  std::string recipient;  // "functions.get_weather"
  Channel channel = Channel::kNone;
  std::string channel_name;  // as it was written
  std::string content_type;  // "json" or "<|constrain|>json"
  std::string leftover;      // text that belongs to no part of a header
};

// What stood between <|start|> (or the end of the message before) and <|message|>.
struct HeaderText {
  std::string before = {};   // in front of <|channel|>
  std::string after = {};    // behind it; <|constrain|> by name
  bool has_channel = false;  // there was a <|channel|>
  bool has_role = false;     // `before` begins with the role: there was a <|start|>
  bool complete = true;      // <|message|> follows
};

Header read_header(const HeaderText& text);

// True while the text in front of <|channel|> may still become a header: words that are a role, a
// recipient or a channel, the last of them perhaps unfinished.
bool may_be_header(std::string_view before);

}  // namespace rota::harmony
