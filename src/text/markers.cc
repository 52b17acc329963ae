#include "text/markers.h"

#include <algorithm>
#include <bitset>
#include <cctype>
#include <utility>

namespace rota {
namespace {

// The private-use planes 15 and 16, without their last two code points (no characters).
constexpr char32_t kFirstPrivate = 0xF0000, kPlane = 0x10000, kUsable = 0xFFFE;

std::string utf8(char32_t c) {
  const auto continued = [&](int shift) { return static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | (c >> 6)), continued(0)};
  if (c < 0x10000) return {static_cast<char>(0xE0 | (c >> 12)), continued(6), continued(0)};
  return {static_cast<char>(0xF0 | (c >> 18)), continued(12), continued(6), continued(0)};
}

size_t utf8_size(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// The code point that valid UTF-8 begins with.
char32_t first_of(std::string_view text) {
  const size_t size = std::min(utf8_size(text[0]), text.size());
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (size == 1) return byte(0);
  char32_t c = byte(0) & (0xFFU >> (size + 1));
  for (size_t i = 1; i < size; ++i) c = (c << 6) | (byte(i) & 0x3F);
  return c;
}

using PrivateSet = std::bitset<2 * kPlane>;

void note_private_text(std::string_view text, PrivateSet& used) {
  for (size_t at = 0; at < text.size(); at += utf8_size(text[at])) {
    if (static_cast<unsigned char>(text[at]) < 0xF3) continue;
    const char32_t c = first_of(text.substr(at));
    if (c >= kFirstPrivate && c < kFirstPrivate + 2 * kPlane) used.set(c - kFirstPrivate);
  }
}

void note_private(const OrderedJson& value, PrivateSet& used) {
  if (value.is_string()) return note_private_text(value.get_ref<const std::string&>(), used);
  if (!value.is_structured()) return;
  for (const auto& [key, item] : value.items()) {
    if (value.is_object()) note_private_text(key, used);
    note_private(item, used);
  }
}

// The first of `count` unused characters in a row; 0: there are none.
char32_t unused_run(const PrivateSet& used, size_t count) {
  size_t run = 0;
  for (size_t i = 0; i < used.size(); ++i) {
    run = used.test(i) || i % kPlane >= kUsable ? 0 : run + 1;
    if (run == count) return kFirstPrivate + static_cast<char32_t>(i + 1 - count);
  }
  return 0;
}

}  // namespace

SpecialTextMarks::SpecialTextMarks(const Tokenizer& tokenizer) : nodes_(1) {
  for (int32_t id : tokenizer.special_ids()) {
    const std::string_view name = tokenizer.token_bytes(id);
    if (!name.empty()) add(name);
  }
}

void SpecialTextMarks::add(std::string_view name) {
  const char32_t first = first_of(name);
  if (originals_.find(first) == std::u32string::npos) originals_ += first;
  uint32_t node = 0;
  for (char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    uint32_t to = child(node, byte);
    if (to == 0) {
      to = static_cast<uint32_t>(nodes_.size());
      auto& children = nodes_[node].children;
      const std::pair<unsigned char, uint32_t> edge(byte, to);
      children.insert(std::ranges::lower_bound(children, edge), edge);
      nodes_.emplace_back();
    }
    node = to;
  }
  nodes_[node].whole = true;
}

uint32_t SpecialTextMarks::child(uint32_t node, unsigned char byte) const {
  const auto& children = nodes_[node].children;
  const auto found =
      std::ranges::lower_bound(children, byte, {}, &std::pair<unsigned char, uint32_t>::first);
  return found != children.end() && found->first == byte ? found->second : 0;
}

// A whole name, or all of the text the beginning of one: what comes after it may complete it.
// (Names that begin with a letter would make half of all words such beginnings.)
bool SpecialTextMarks::begins_name(std::string_view text) const {
  uint32_t node = 0;
  for (char c : text) {
    node = child(node, static_cast<unsigned char>(c));
    if (node == 0) return false;
    if (nodes_[node].whole) return true;
  }
  return node != 0 && std::isalnum(static_cast<unsigned char>(text[0])) == 0;
}

bool SpecialTextMarks::text_has_names(std::string_view text) const {
  for (size_t at = 0; at < text.size(); ++at) {
    if (begins_name(text.substr(at))) return true;
  }
  return false;
}

bool SpecialTextMarks::has_names(const OrderedJson& value) const {
  if (value.is_string()) return text_has_names(value.get_ref<const std::string&>());
  if (!value.is_structured()) return false;
  for (const auto& [key, item] : value.items()) {
    if (value.is_object() && text_has_names(key)) return true;
    if (has_names(item)) return true;
  }
  return false;
}

std::string SpecialTextMarks::marked(const std::string& text, const TextMarkers& markers) const {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    const std::string_view rest = std::string_view(text).substr(at);
    if (!begins_name(rest)) {
      out += text[at];
      continue;
    }
    const char32_t first = first_of(rest);
    out += utf8(markers.first + static_cast<char32_t>(markers.originals.find(first)));
    at += utf8_size(text[at]) - 1;
  }
  return out;
}

void SpecialTextMarks::mark(OrderedJson& value, const TextMarkers& markers) const {
  if (value.is_string()) {
    value = marked(value.get_ref<const std::string&>(), markers);
  } else if (value.is_array()) {
    for (OrderedJson& item : value) mark(item, markers);
  } else if (value.is_object()) {
    OrderedJson out = OrderedJson::object();
    for (auto& [key, item] : value.items()) {
      mark(item, markers);
      out[marked(key, markers)] = std::move(item);
    }
    value = std::move(out);
  }
}

Result<TextMarkers> SpecialTextMarks::mark(OrderedJson& value, std::string_view others) const {
  if (!has_names(value)) return TextMarkers();
  PrivateSet used;
  note_private(value, used);
  note_private_text(others, used);
  TextMarkers markers{unused_run(used, originals_.size()), originals_};
  if (markers.first == 0) {
    return invalid_argument(
        "messages: hold the name of a special token and every private-use "
        "character: they cannot be kept apart");
  }
  mark(value, markers);
  return markers;
}

std::string unmark(std::string_view text, const TextMarkers& markers) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t size = std::min(utf8_size(text[at]), text.size() - at);
    const std::string_view character = text.substr(at, size);
    const char32_t c = size == 4 ? first_of(character) : 0;
    const bool is_marker = c >= markers.first && c - markers.first < markers.originals.size();
    out += is_marker ? utf8(markers.originals[c - markers.first]) : std::string(character);
    at += size;
  }
  return out;
}

}  // namespace rota
