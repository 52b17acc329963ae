#include "checkpoint/json_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "platform/mapped_file.h"

namespace rota {
namespace {

struct Place {
  int64_t line = 1;
  int64_t column = 1;
  std::string near;  // printable
};

Place place_of(std::string_view text, size_t at) {
  at = std::min(at, text.size());
  Place place;
  for (size_t i = 0; i < at; ++i) {
    const bool newline = text[i] == '\n';
    place.line += newline ? 1 : 0;
    place.column = newline ? 1 : place.column + 1;
  }
  for (const char c : text.substr(at, 24)) {
    if (c == '\n') break;
    place.near.push_back(c >= 0x20 && c < 0x7f ? c : '?');
  }
  return place;
}

Status not_json(std::string_view source, std::string_view text, size_t at) {
  const Place place = place_of(text, at);
  return invalid_argument("{}: line {}, column {}: not valid JSON near '{}'", source, place.line,
                          place.column, place.near);
}

}  // namespace

Result<std::string> read_text_file(const std::string& path, int64_t max_bytes) {
  ROTA_ASSIGN_OR_RETURN(const OpenedFile opened, open_regular_file(path, FollowSymlinks::kYes));
  std::string text;
  Status status;
  if (opened.size > max_bytes) {
    status =
        invalid_argument("{}: is {} bytes long, expected at most {}", path, opened.size, max_bytes);
  } else {
    text.resize(static_cast<size_t>(opened.size));
  }
  size_t done = 0;
  while (status.ok() && done < text.size()) {
    const ssize_t got =
        pread(opened.descriptor, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) status = error(StatusCode::kIo, "{}: cannot read: {}", path, std::strerror(errno));
    if (got == 0) text.resize(done);  // became shorter meanwhile
    done += got > 0 ? static_cast<size_t>(got) : 0;
  }
  close(opened.descriptor);
  if (!status.ok()) return status;
  return text;
}

int json_depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

Result<nlohmann::json> parse_json(std::string_view source, std::string_view text) {
  if (const int depth = json_depth(text); depth > kMaxJsonDepth) {
    return invalid_argument("{}: JSON nested {} deep, expected at most {}", source, depth,
                            kMaxJsonDepth);
  }
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::parse_error& e) {
    return not_json(source, text, e.byte > 0 ? e.byte - 1 : 0);
  } catch (const nlohmann::json::exception& e) {
    return invalid_argument("{}: not usable JSON: {}", source, e.what());
  }
}

Result<nlohmann::json> read_json_file(const std::string& path) {
  ROTA_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  return parse_json(path, text);
}

}  // namespace rota
