// Generated harmony tokens to messages, one token at a time.
//
// Contract: every token sequence is accepted. A kMessage event opens a message and says its header;
// kText events are its text; kEnd closes it. All text between <|message|> and the end of a message
// comes out, and all text of headers that is not understood as part of one. A header that does not
// end is given up after kMaxHeaderBytes and becomes text. Example: see chat_parser.h
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "text/detokenizer.h"
#include "text/harmony/header.h"
#include "text/harmony/vocabulary.h"

namespace rota::harmony {

struct Event {
  enum class Kind { kMessage, kText, kEnd };
  Kind kind;
  Header header = {};     // kMessage
  std::string text = {};  // kText: whole code points, never empty
};

class Stream {
 public:
  static constexpr size_t kMaxHeaderBytes = 512;

  // The prompt ended with "<|start|>assistant".
  Stream(std::shared_ptr<const Tokenizer> tokenizer, const Vocabulary& vocabulary);

  std::vector<Event> push(int32_t id);
  std::vector<Event> finish();
  bool in_message() const { return open_; }

 private:
  void take_text(const std::string& text, std::vector<Event>& out);
  void take_mark(int32_t id, std::vector<Event>& out);
  void begin_header(bool has_role);
  void begin_channel(std::vector<Event>& out);
  void end_header(bool complete, std::vector<Event>& out);
  void end_message(std::vector<Event>& out);
  void give_up_header(std::vector<Event>& out);
  bool is_mark(int32_t id) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  Vocabulary vocabulary_;
  Detokenizer detokenizer_;
  bool open_ = false;  // inside a message's text; else in a header
  HeaderText header_;
};

}  // namespace rota::harmony
