// Reading the small JSON files of a model folder: bounded size, bounded depth, errors with a place.
//
//   ROTA_ASSIGN_OR_RETURN(nlohmann::json config, read_json_file(dir + "/config.json"));
//   // "config.json: line 20, column 17: not valid JSON near 'NaN,'"
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace rota {

inline constexpr int64_t kMaxJsonFileBytes = 64 << 20;
inline constexpr int kMaxJsonDepth = 64;

// source: what messages call the text. Infinity and -Infinity, which Python writes and JSON does
// not have, become those strings: is_infinity() of json_fields.h knows them, a field that wants a
// number refuses them by name.
Result<nlohmann::json> parse_json(std::string_view source, std::string_view text);

Result<nlohmann::json> read_json_file(const std::string& path);

// Deepest nesting of brackets outside strings; for text that is not yet known to be JSON.
int json_depth(std::string_view text);

}  // namespace rota
