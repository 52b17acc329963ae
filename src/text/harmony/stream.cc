#include "text/harmony/stream.h"

#include <utility>

namespace rota::harmony {

Stream::Stream(std::shared_ptr<const Tokenizer> tokenizer, const Vocabulary& vocabulary)
    : tokenizer_(std::move(tokenizer)), vocabulary_(vocabulary), detokenizer_(tokenizer_) {}

bool Stream::is_mark(int32_t id) const {
  return id >= 0 &&
         (id == vocabulary_.start || id == vocabulary_.channel || id == vocabulary_.message ||
          id == vocabulary_.end || id == vocabulary_.return_ || id == vocabulary_.call ||
          id == vocabulary_.constrain);
}

std::vector<Event> Stream::push(int32_t id) {
  std::vector<Event> out;
  if (is_mark(id)) {
    take_text(detokenizer_.finish(), out);
    take_mark(id, out);
  } else {
    take_text(detokenizer_.push(id), out);
  }
  return out;
}

std::vector<Event> Stream::finish() {
  std::vector<Event> out;
  take_text(detokenizer_.finish(), out);
  if (!open_) end_header(/*complete=*/false, out);
  end_message(out);
  return out;
}

void Stream::take_text(const std::string& text, std::vector<Event>& out) {
  if (text.empty()) return;
  if (open_) {
    out.push_back({.kind = Event::Kind::kText, .text = text});
    return;
  }
  (header_.has_channel ? header_.after : header_.before) += text;
  const size_t size = header_.before.size() + header_.after.size();
  // Behind <|start|> or <|channel|> a header is sure to come; else only header-like words are
  // waited for.
  const bool sure = header_.has_role || header_.has_channel;
  if (size > kMaxHeaderBytes || (!sure && !may_be_header(header_.before))) give_up_header(out);
}

void Stream::take_mark(int32_t id, std::vector<Event>& out) {
  if (id == vocabulary_.message) {
    if (!open_) end_header(/*complete=*/true, out);  // doubled inside a message: markup, no text
  } else if (id == vocabulary_.channel) {
    begin_channel(out);
  } else if (id == vocabulary_.constrain) {
    if (!open_) (header_.has_channel ? header_.after : header_.before) += " <|constrain|>";
  } else {
    if (!open_) end_header(/*complete=*/false, out);
    end_message(out);
    begin_header(/*has_role=*/id == vocabulary_.start);
  }
}

void Stream::begin_header(bool has_role) {
  header_ = HeaderText();
  header_.has_role = has_role;
}

void Stream::begin_channel(std::vector<Event>& out) {
  if (open_) {  // the end of the message before is missing
    end_message(out);
    begin_header(/*has_role=*/false);
  }
  if (header_.has_channel) header_.after += ' ';  // doubled
  header_.has_channel = true;
}

// Opens the message that the header speaks of. Without <|message|>: only if the header says
// anything.
void Stream::end_header(bool complete, std::vector<Event>& out) {
  header_.complete = complete;
  Header header = read_header(header_);
  header_ = HeaderText();
  if (!complete && header.leftover.empty() && header.recipient.empty()) return;
  std::string leftover = header.leftover;
  if (const size_t begin = leftover.find_first_not_of(" \t\r\n"); complete) {
    leftover.erase(0, std::min(begin, leftover.size()));
  }
  open_ = true;
  out.push_back({.kind = Event::Kind::kMessage, .header = std::move(header)});
  if (!leftover.empty()) {
    out.push_back({.kind = Event::Kind::kText, .text = std::move(leftover)});
  }
}

void Stream::end_message(std::vector<Event>& out) {
  if (!std::exchange(open_, false)) return;
  out.push_back({.kind = Event::Kind::kEnd});
}

// What looked like a header is the text of a message without one.
void Stream::give_up_header(std::vector<Event>& out) {
  if (header_.has_role || header_.has_channel) {
    end_header(/*complete=*/false, out);
    return;
  }
  open_ = true;
  out.push_back({.kind = Event::Kind::kMessage});
  out.push_back({.kind = Event::Kind::kText, .text = std::exchange(header_, HeaderText()).before});
}

}  // namespace rota::harmony
