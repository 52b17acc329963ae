// Reading a request's JSON strictly: every getter names the field in its error, and a null is a
// field that was not sent.
//
//   ROTA_ASSIGN_OR_RETURN(OrderedJson body, parse_request_json(text));
//   FieldReader fields(body);
//   fields.read("temperature", params.temperature, 0.0, 2.0);
//   ROTA_RETURN_IF_ERROR(fields.status());
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/chat.h"

namespace rota {

// Limits of a request's JSON. Members are counted because an ordered object looks its keys up one
// by one.
inline constexpr int kMaxJsonDepth = 64;
inline constexpr int64_t kMaxJsonMembers = 1 << 18;
inline constexpr int64_t kMaxJsonObjectMembers = 1500;

// An object within the limits; kInvalidArgument otherwise. Never echoes the text.
Result<OrderedJson> parse_request_json(std::string_view text);

// Reads members of one object. The first error sticks; later reads do nothing.
class FieldReader {
 public:
  explicit FieldReader(const OrderedJson& object, std::string prefix = {})
      : object_(object), prefix_(std::move(prefix)) {}

  // Null or absent: `out` stays as it is.
  void read(const char* name, double& out, double least, double most);
  void read(const char* name, int64_t& out, int64_t least, int64_t most);
  void read(const char* name, bool& out);
  void read(const char* name, std::string& out, size_t longest);
  void read(const char* name, std::vector<int32_t>& out, size_t most);  // a list of token ids
  template <typename T, typename... Bounds>
  void read(const char* name, std::optional<T>& out, Bounds... bounds) {
    T value{};
    if (!has(name)) return;
    read(name, value, bounds...);
    if (status_.ok()) out = std::move(value);
  }

  // The member, or null when absent or null.
  const OrderedJson* find(const char* name) const;
  bool has(const char* name) const { return find(name) != nullptr; }
  // A known field that we do not serve: any value but null, and but `neutral`, is refused by name.
  void refuse_unless(const char* name, const OrderedJson& neutral, std::string_view why);
  void fail(const char* name, std::string_view problem);
  const Status& status() const { return status_; }

 private:
  const OrderedJson& object_;  // outlives the reader
  std::string prefix_;
  Status status_;
};

// Text as JSON inside an event or body: invalid UTF-8 becomes U+FFFD instead of an exception.
std::string dump(const OrderedJson& value);

}  // namespace rota
