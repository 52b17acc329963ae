#include "text/utf8_stream.h"

#include <cstdint>

namespace rota {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// The second byte that may follow a lead byte: not every continuation byte is valid there (overlong
// forms, surrogates, beyond U+10FFFF). The Unicode standard, table 3-7.
struct Lead {
  uint8_t size;  // bytes of the code point; 0: cannot begin one
  uint8_t second_min = 0x80, second_max = 0xBF;
};

constexpr Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

struct Prefix {
  size_t size;    // of the longest prefix that begins a code point (at least 1)
  bool complete;  // it is one
  bool open;      // more bytes may complete it
};

Prefix code_point_prefix(std::string_view text) {
  const Lead lead = lead_of(static_cast<uint8_t>(text[0]));
  if (lead.size == 0) return {1, false, false};
  size_t size = 1;
  while (size < lead.size && size < text.size()) {
    const auto byte = static_cast<uint8_t>(text[size]);
    const uint8_t min = size == 1 ? lead.second_min : uint8_t{0x80};
    const uint8_t max = size == 1 ? lead.second_max : uint8_t{0xBF};
    if (byte < min || byte > max) return {size, false, false};
    ++size;
  }
  return {size, size == lead.size, size < lead.size};
}

}  // namespace

void Utf8Stream::replace(size_t bytes, std::string& out) const {
  const size_t times = replace_ == Replace::kEachByte ? bytes : 1;
  for (size_t i = 0; i < times; ++i) out += kReplacement;
}

void Utf8Stream::append(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!held_.empty()) {
    joined = held_;
    joined += bytes;
    bytes = joined;
    held_.clear();
  }
  while (!bytes.empty()) {
    const Prefix prefix = code_point_prefix(bytes);
    if (prefix.open) {  // then it reaches to the end
      held_ = bytes;
      return;
    }
    if (prefix.complete) {
      out += bytes.substr(0, prefix.size);
    } else {
      replace(prefix.size, out);
    }
    bytes.remove_prefix(prefix.size);
  }
}

void Utf8Stream::finish(std::string& out) {
  if (!held_.empty()) replace(held_.size(), out);
  held_.clear();
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const Prefix prefix = code_point_prefix(text);
    if (!prefix.complete) return false;
    text.remove_prefix(prefix.size);
  }
  return true;
}

}  // namespace rota
