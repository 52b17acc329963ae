#include "engine/wire.h"

#include <array>
#include <bit>

#include "engine/msgpack_shape.h"
#include "engine/wire_codec.h"

namespace rota::wire {
namespace {

constexpr size_t kLengthBytes = 4;
constexpr int kMaxDepth = 12;  // the deepest message is 6 arrays deep
static_assert(std::endian::native == std::endian::little);

// The message of type `index`, if the members fit.
template <size_t kIndex = 0>
bool unpack_alternative(size_t index, const Json& json, Message& message) {
  if constexpr (kIndex < std::variant_size_v<Message>) {
    if (index != kIndex) return unpack_alternative<kIndex + 1>(index, json, message);
    auto& value = message.emplace<kIndex>();
    return Codec<std::remove_reference_t<decltype(value)>>::unpack(json, value);
  } else {
    return false;
  }
}

}  // namespace

std::string encode(const Message& message) {
  Json document = Json::array({message.index()});
  std::visit(
      [&](const auto& value) {
        document.push_back(Codec<std::remove_cvref_t<decltype(value)>>::pack(value));
      },
      message);
  std::string frame(kLengthBytes, '\0');
  Json::to_msgpack(document, frame);
  const auto length = static_cast<uint32_t>(frame.size() - kLengthBytes);
  std::memcpy(frame.data(), &length, sizeof length);
  return frame;
}

Result<Message> decode(std::span<const uint8_t> payload) {
  ROTA_RETURN_IF_ERROR(check_msgpack_shape(payload, kMaxDepth));
  const Json document = Json::from_msgpack(payload.begin(), payload.end(), true, false);
  Message message;
  size_t index = 0;
  if (!document.is_array() || document.size() != 2 || !Codec<size_t>::unpack(document[0], index) ||
      !unpack_alternative(index, document[1], message)) {
    return error(StatusCode::kDataLoss,
                 "engine protocol: a frame of {} bytes is no message that this build knows",
                 payload.size());
  }
  return message;
}

Result<std::optional<Message>> FrameReader::next() {
  const std::string_view rest = std::string_view(buffer_).substr(used_);
  uint32_t length = 0;
  if (rest.size() >= kLengthBytes) std::memcpy(&length, rest.data(), sizeof length);
  if (rest.size() >= kLengthBytes && (length == 0 || length > kMaxFrameBytes)) {
    return error(StatusCode::kDataLoss,
                 "engine protocol: a frame of {} bytes, expected between 1 and {}", length,
                 kMaxFrameBytes);
  }
  if (rest.size() < kLengthBytes || rest.size() - kLengthBytes < length) {
    buffer_.erase(0, used_);
    used_ = 0;
    return std::optional<Message>();
  }
  used_ += kLengthBytes + length;
  const std::string_view payload = rest.substr(kLengthBytes, length);
  ROTA_ASSIGN_OR_RETURN(Message message,
                        decode({reinterpret_cast<const uint8_t*>(payload.data()), payload.size()}));
  return std::optional(std::move(message));
}

}  // namespace rota::wire
