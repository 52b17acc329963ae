#include "engine/msgpack_shape.h"

#include <optional>
#include <vector>

namespace rota::wire {
namespace {

// What one value's head says: bytes that follow as its body, or elements that follow.
struct Head {
  uint64_t body_bytes = 0;
  uint64_t elements = 0;
  bool is_array = false;
};

class Scanner {
 public:
  explicit Scanner(std::span<const uint8_t> document) : document_(document) {}

  size_t position() const { return position_; }
  bool at_end() const { return position_ == document_.size(); }

  // Nothing: truncated, or a type that is not used here.
  std::optional<Head> read_head() {
    if (at_end()) return std::nullopt;
    const uint8_t type = document_[position_++];
    if (type <= 0x7f || type >= 0xe0) return Head{};                 // small integers
    if ((type & 0xf0) == 0x90) return array(uint64_t{type} & 0x0f);  // small array
    if ((type & 0xe0) == 0xa0) return body(uint64_t{type} & 0x1f);   // small string
    switch (type) {
      case 0xc0:  // nil, false, true
      case 0xc2:
      case 0xc3:
        return Head{};
      case 0xca:  // float, 32- and 64-bit integers
      case 0xce:
      case 0xd2:
        return body(4);
      case 0xcb:
      case 0xcf:
      case 0xd3:
        return body(8);
      case 0xcc:
      case 0xd0:
        return body(1);
      case 0xcd:
      case 0xd1:
        return body(2);
      case 0xc4:  // binary and string: a length, then the bytes
      case 0xd9:
        return sized(1);
      case 0xc5:
      case 0xda:
        return sized(2);
      case 0xc6:
      case 0xdb:
        return sized(4);
      case 0xdc:
        return counted(2);
      case 0xdd:
        return counted(4);
      default:
        return std::nullopt;
    }
  }

  bool skip(uint64_t bytes) {
    if (bytes > document_.size() - position_) return false;
    position_ += static_cast<size_t>(bytes);
    return true;
  }

 private:
  static Head body(uint64_t bytes) { return {.body_bytes = bytes}; }
  static Head array(uint64_t elements) { return {.elements = elements, .is_array = true}; }
  std::optional<uint64_t> big_endian(size_t bytes) {
    if (bytes > document_.size() - position_) return std::nullopt;
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value = value << 8 | document_[position_++];
    return value;
  }
  std::optional<Head> sized(size_t bytes) {
    const auto length = big_endian(bytes);
    return length ? std::optional(body(*length)) : std::nullopt;
  }
  std::optional<Head> counted(size_t bytes) {
    const auto count = big_endian(bytes);
    return count ? std::optional(array(*count)) : std::nullopt;
  }

  std::span<const uint8_t> document_;
  size_t position_ = 0;
};

}  // namespace

Status check_msgpack_shape(std::span<const uint8_t> document, int max_depth) {
  Scanner scanner(document);
  std::vector<uint64_t> open = {1};  // values still to come, at each depth
  while (!open.empty()) {
    if (open.back() == 0) {
      open.pop_back();
      continue;
    }
    --open.back();
    const size_t where = scanner.position();
    const std::optional<Head> head = scanner.read_head();
    if (!head || !scanner.skip(head->body_bytes)) {
      return error(StatusCode::kDataLoss, "MessagePack: cut off or of an unknown type at byte {}",
                   where);
    }
    if (!head->is_array) continue;
    if (static_cast<int>(open.size()) > max_depth) {
      return error(StatusCode::kDataLoss, "MessagePack: deeper than {} arrays at byte {}",
                   max_depth, where);
    }
    open.push_back(head->elements);
  }
  if (scanner.at_end()) return {};
  return error(StatusCode::kDataLoss, "MessagePack: {} bytes too many",
               document.size() - scanner.position());
}

}  // namespace rota::wire
