#include "checkpoint/shard_index.h"

#include <simdjson.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/json_file.h"
#include "platform/read_file.h"

namespace rota {
namespace {

namespace fs = std::filesystem;
namespace dom = simdjson::dom;

constexpr size_t kMaxIndexDepth = 16;
constexpr int64_t kMaxIndexBytes = 256 << 20;

// Says what is wrong with a shard's name, or nothing.
std::string_view fault_of_shard_name(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name == "." || name == "..") return "is a folder";
  if (name.front() == '/') return "is an absolute path";
  if (name.find('/') != std::string_view::npos) return "leads out of the folder or below it";
  if (name.find('\0') != std::string_view::npos) return "has a NUL byte in it";
  return {};
}

// What a folder without safetensors holds instead, for the message.
std::string other_weights(const std::string& model_dir) {
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(model_dir, ec)) {
    const std::string extension = entry.path().extension();
    if (extension == ".safetensors" || extension == ".gguf" || extension == ".bin" ||
        extension == ".pt" || extension == ".pth") {
      return fmt::format(" (it has {})", entry.path().filename().string());
    }
  }
  return "";
}

}  // namespace

Result<ShardIndex> parse_shard_index(std::string_view source, std::string_view text) {
  dom::parser parser;
  dom::object map;
  auto fault = parser.allocate(std::max<size_t>(text.size(), 64), kMaxIndexDepth);
  if (!fault) fault = parser.parse(text.data(), text.size())["weight_map"].get_object().get(map);
  if (fault) {
    return invalid_argument("{}: needs an object weight_map: {}", source,
                            simdjson::error_message(fault));
  }
  ShardIndex index;
  std::vector<std::pair<std::string_view, std::string_view>> pairs;
  for (const auto field : map) {
    std::string_view shard;
    if (field.value.get_string().get(shard)) {
      return invalid_argument("{}: weight_map: the entry of {} is not a string", source, field.key);
    }
    if (const auto what = fault_of_shard_name(shard); !what.empty()) {
      return invalid_argument(
          "{}: weight_map: tensor {}: file name '{}' {}, expected a file beside the index", source,
          field.key, shard, what);
    }
    pairs.emplace_back(field.key, shard);
    index.shards.emplace_back(shard);
    // Neighbours mostly share a shard: keeps the list about as long as there are files.
    if (index.shards.size() > 1 && index.shards.back() == index.shards[index.shards.size() - 2]) {
      index.shards.pop_back();
    }
  }
  if (pairs.empty()) return invalid_argument("{}: weight_map is empty", source);
  std::sort(index.shards.begin(), index.shards.end());
  index.shards.erase(std::unique(index.shards.begin(), index.shards.end()), index.shards.end());

  std::sort(pairs.begin(), pairs.end());
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto& [name, shard] = pairs[i];
    if (i > 0 && pairs[i - 1].first == name) {
      return invalid_argument("{}: weight_map: tensor {} occurs twice", source, name);
    }
    const auto at = std::lower_bound(index.shards.begin(), index.shards.end(), shard);
    index.weight_map.emplace_back(std::string(name),
                                  static_cast<size_t>(at - index.shards.begin()));
  }
  return index;
}

Result<ShardIndex> read_shard_index(const std::string& model_dir) {
  // A name that is there in any form counts, so that a broken link is an error and not "no
  // weights".
  const auto has = [&](std::string_view name) {
    std::error_code ec;
    const auto type = fs::symlink_status(fs::path(model_dir) / name, ec).type();
    return type != fs::file_type::not_found && type != fs::file_type::none;
  };
  if (has(kSingleFileName)) {
    return ShardIndex{
        .single_file = true, .shards = {std::string(kSingleFileName)}, .weight_map = {}};
  }
  if (!has(kIndexFileName)) {
    return error(
        StatusCode::kNotFound,
        "{}: has neither {} nor {}{}; download the weights (`hf download ORG/NAME`), or give "
        "--load-format dummy",
        model_dir, kSingleFileName, kIndexFileName, other_weights(model_dir));
  }
  const std::string path = fs::path(model_dir) / kIndexFileName;
  ROTA_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxIndexBytes));
  return parse_shard_index(path, text);
}

}  // namespace rota
