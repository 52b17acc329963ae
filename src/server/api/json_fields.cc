#include "server/api/json_fields.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace rota {
namespace {

// Walks the brackets and colons outside strings. Malformed text is the parser's business.
Status check_size(std::string_view text) {
  std::array<int64_t, kMaxJsonDepth + 1> members{};
  int64_t all_members = 0;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxJsonDepth) {
        return invalid_argument("The request's JSON is nested more than {} levels deep.",
                                kMaxJsonDepth);
      }
      members[static_cast<size_t>(depth)] = 0;
    } else if (c == '}' || c == ']') {
      depth = std::max(0, depth - 1);
    } else if (c == ':') {
      ++all_members;
      if (++members[static_cast<size_t>(depth)] > kMaxJsonObjectMembers ||
          all_members > kMaxJsonMembers) {
        return invalid_argument(
            "The request's JSON has more members than the {} in an object and {} in all that are "
            "read.",
            kMaxJsonObjectMembers, kMaxJsonMembers);
      }
    }
  }
  return {};
}

}  // namespace

Result<OrderedJson> parse_request_json(std::string_view text) {
  ROTA_RETURN_IF_ERROR(check_size(text));
  OrderedJson value;
  try {
    value = OrderedJson::parse(text);
  } catch (const OrderedJson::parse_error& fault) {
    return invalid_argument("The request's body is not valid JSON (at byte {}).", fault.byte);
  } catch (const OrderedJson::exception&) {
    return invalid_argument("The request's body has a number that is out of range.");
  }
  if (!value.is_object()) return invalid_argument("The request's body must be a JSON object.");
  return value;
}

const OrderedJson* FieldReader::find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void FieldReader::fail(const char* name, std::string_view problem) {
  if (status_.ok()) status_ = invalid_argument("{}{}: {}", prefix_, name, problem);
}

void FieldReader::read(const char* name, double& out, double least, double most) {
  const OrderedJson* value = find(name);
  if (value == nullptr || !status_.ok()) return;
  if (!value->is_number()) return fail(name, "must be a number");
  const double number = value->get<double>();
  if (!std::isfinite(number) || number < least || number > most) {
    return fail(name, fmt::format("{} is not between {} and {}", number, least, most));
  }
  out = number;
}

void FieldReader::read(const char* name, int64_t& out, int64_t least, int64_t most) {
  const OrderedJson* value = find(name);
  if (value == nullptr || !status_.ok()) return;
  // 16.0 is an integer to most JSON writers.
  const bool whole = value->is_number_float() && std::abs(value->get<double>()) < 9e15 &&
                     std::trunc(value->get<double>()) == value->get<double>();
  if (!value->is_number_integer() && !whole) return fail(name, "must be an integer");
  const bool huge =
      value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t number = whole ? static_cast<int64_t>(value->get<double>()) : value->get<int64_t>();
  if (huge || number < least || number > most) {
    return fail(name, huge ? fmt::format("must be between {} and {}", least, most)
                           : fmt::format("{} is not between {} and {}", number, least, most));
  }
  out = number;
}

void FieldReader::read(const char* name, bool& out) {
  const OrderedJson* value = find(name);
  if (value == nullptr || !status_.ok()) return;
  if (!value->is_boolean()) return fail(name, "must be true or false");
  out = value->get<bool>();
}

void FieldReader::read(const char* name, std::string& out, size_t longest) {
  const OrderedJson* value = find(name);
  if (value == nullptr || !status_.ok()) return;
  if (!value->is_string()) return fail(name, "must be a string");
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() > longest) return fail(name, fmt::format("is longer than {} bytes", longest));
  out = text;
}

void FieldReader::read(const char* name, std::vector<int32_t>& out, size_t most) {
  const OrderedJson* value = find(name);
  if (value == nullptr || !status_.ok()) return;
  if (!value->is_array()) return fail(name, "must be a list of token ids");
  if (value->size() > most) return fail(name, fmt::format("has more than {} entries", most));
  std::vector<int32_t> ids;
  ids.reserve(value->size());
  for (const OrderedJson& entry : *value) {
    if (!entry.is_number_integer() || entry < 0 || entry > INT32_MAX) {
      return fail(name, "must be a list of token ids (integers from 0 on)");
    }
    ids.push_back(entry.get<int32_t>());
  }
  out = std::move(ids);
}

void FieldReader::refuse_unless(const char* name, const OrderedJson& neutral,
                                std::string_view why) {
  const OrderedJson* value = find(name);
  if (value != nullptr && *value != neutral) fail(name, why);
}

std::string dump(const OrderedJson& value) {
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace rota
