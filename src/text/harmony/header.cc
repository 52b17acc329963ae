#include "text/harmony/header.h"

#include <algorithm>
#include <array>
#include <utility>

namespace rota::harmony {
namespace {

constexpr std::string_view kSpace = " \t\r\n", kTo = "to=", kConstrain = "<|constrain|>";
constexpr std::array<std::string_view, 5> kRoles = {"assistant", "user", "system", "developer",
                                                    "tool"};
constexpr std::array<std::pair<std::string_view, Channel>, 3> kChannels = {
    {{"analysis", Channel::kAnalysis},
     {"commentary", Channel::kCommentary},
     {"final", Channel::kFinal}}};
constexpr size_t kMaxHeaderWords = 6, kMaxContentTypeBytes = 32, kMinChannelPrefix = 4;

bool is_role(std::string_view word) { return std::ranges::find(kRoles, word) != kRoles.end(); }

// The channel that a word names: the last known name in it, or the one that it is the beginning of.
Channel channel_in(std::string_view word) {
  Channel found = Channel::kNone;
  size_t at = 0;
  for (const auto& [name, channel] : kChannels) {
    const size_t place = word.rfind(name);
    if (place == std::string_view::npos) continue;
    if (found == Channel::kNone || place >= at) found = channel;
    at = std::max(at, place);
  }
  if (found != Channel::kNone) return found;
  for (const auto& [name, channel] : kChannels) {
    if (word.size() >= kMinChannelPrefix && name.starts_with(word)) return channel;
  }
  return Channel::kNone;
}

// Walks over words; the space in front of each is kept for the leftover.
class Words {
 public:
  explicit Words(std::string_view text) : rest_(text) { advance(); }

  bool done() const { return word_.empty(); }
  std::string_view word() const { return word_; }
  std::string_view space() const { return space_; }

  // Goes on behind the first `size` bytes of the word.
  void cut(size_t size) {
    word_.remove_prefix(size);
    space_ = {};
    if (word_.empty()) advance();
  }
  void next() { cut(word_.size()); }

 private:
  void advance() {
    const size_t begin = std::min(rest_.find_first_not_of(kSpace), rest_.size());
    space_ = rest_.substr(0, begin);
    rest_.remove_prefix(begin);
    const size_t end = std::min(rest_.find_first_of(kSpace), rest_.size());
    word_ = rest_.substr(0, end);
    rest_.remove_prefix(end);
  }

  std::string_view rest_, word_, space_;
};

class Reader {
 public:
  explicit Reader(const HeaderText& text) : text_(text) {}

  Header read() {
    Words before(text_.before);
    if (text_.has_role && !before.done()) read_role(before);
    while (!before.done()) read_word(before, /*behind_channel=*/false);
    Words after(text_.after);
    if (text_.has_channel && !after.done()) read_channel(after);
    while (!after.done()) read_word(after, /*behind_channel=*/true);
    return std::move(header_);
  }

 private:
  void read_role(Words& words) {
    const std::string_view word = words.word();
    // "assistantfinal": the <|channel|> between them is missing.
    for (std::string_view role : kRoles) {
      if (word.size() > role.size() && word.starts_with(role)) {
        header_.role = role;
        words.cut(role.size());
        return;
      }
    }
    // Another name ("functions.f") only where nothing else is known of it.
    if (is_role(word) || word.find('.') != std::string_view::npos) {
      header_.role = word;
      words.next();
    }
  }

  void read_channel(Words& words) {
    if (starts_structure(words.word())) return;
    std::string_view word = words.word();
    word = word.substr(0, std::min(word.find(kTo), word.size()));
    const Channel channel = channel_in(word);
    // An unknown name is a name only if it stands alone.
    if (channel == Channel::kNone && !stands_alone(words)) return;
    header_.channel = channel;
    header_.channel_name = word;
    words.cut(word.size());
  }

  bool stands_alone(Words words) const {
    if (!text_.complete) return false;
    words.next();
    return words.done() || starts_structure(words.word());
  }

  static bool starts_structure(std::string_view word) {
    return word.starts_with(kTo) || word.starts_with(kConstrain);
  }

  void read_word(Words& words, bool behind_channel) {
    const std::string_view word = words.word();
    if (word.starts_with(kTo)) return read_recipient(words);
    if (word.starts_with(kConstrain)) return read_constraint(words);
    if (const size_t to = word.find(kTo);
        to != std::string_view::npos && channel_in(word.substr(0, to)) != Channel::kNone) {
      return take_channel(words, to);
    }
    // A second channel replaces the first: the model corrected itself.
    if (channel_in(word) != Channel::kNone && (behind_channel || !text_.has_channel)) {
      return take_channel(words, word.size());
    }
    if (!behind_channel && is_role(word)) return words.next();
    if (behind_channel && is_content_type(words)) {
      header_.content_type = word;
      return words.next();
    }
    header_.leftover += words.space();
    header_.leftover += word;
    words.next();
  }

  void take_channel(Words& words, size_t size) {
    const std::string_view name = words.word().substr(0, size);
    header_.channel = channel_in(name);
    header_.channel_name = name;
    words.cut(size);
  }

  void read_recipient(Words& words) {
    words.cut(kTo.size());  // "to= functions.f" too
    if (words.done()) return;
    std::string_view name = words.word();
    name = name.substr(0, std::min(name.find(kConstrain), name.size()));
    if (header_.recipient.empty()) {
      header_.recipient = name;
    } else if (header_.recipient != name) {
      header_.leftover += " to=" + std::string(name);
    }
    words.cut(name.size());
  }

  void read_constraint(Words& words) {
    words.cut(kConstrain.size());
    if (words.done()) return;
    header_.content_type = std::string(kConstrain) + std::string(words.word());
    words.next();
  }

  // A single word behind the channel, such as "json" or "code".
  bool is_content_type(Words words) const {
    const std::string_view word = words.word();
    const bool plain =
        word.size() <= kMaxContentTypeBytes && std::ranges::all_of(word, [](unsigned char c) {
          return std::isalnum(c) != 0 || c == '/' || c == '+' || c == '-' || c == '_';
        });
    if (!text_.complete || !plain || !header_.content_type.empty() || !header_.leftover.empty()) {
      return false;
    }
    words.next();
    return words.done() || words.word().starts_with(kTo);
  }

  const HeaderText& text_;
  Header header_;
};

}  // namespace

Header read_header(const HeaderText& text) { return Reader(text).read(); }

bool may_be_header(std::string_view before) {
  size_t count = 0;
  Words words(before);
  for (; !words.done(); ++count) {
    if (count == kMaxHeaderWords) return false;
    const std::string_view word = words.word();
    const bool last = word.data() + word.size() == before.data() + before.size();
    const auto fits = [&](std::string_view name) {
      return word == name || (last && name.starts_with(word));
    };
    const bool known = word.starts_with(kTo) || (last && kTo.starts_with(word)) ||
                       std::ranges::any_of(kRoles, fits) ||
                       std::ranges::any_of(kChannels, [&](const auto& c) { return fits(c.first); });
    if (!known) return false;
    words.next();
  }
  return true;
}

}  // namespace rota::harmony
