// Which safetensors files a model folder has: model.safetensors, or the shards that
// model.safetensors.index.json names.
//
// Contract: a shard is a plain file name beside the index: no slash, no "..", whatever the index
// says.
//
//   ROTA_ASSIGN_OR_RETURN(ShardIndex index, read_shard_index(dir));
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace rota {

inline constexpr std::string_view kSingleFileName = "model.safetensors";
inline constexpr std::string_view kIndexFileName = "model.safetensors.index.json";

struct ShardIndex {
  bool single_file = false;         // no index: every tensor of the one file counts
  std::vector<std::string> shards;  // file names, sorted, each once
  // tensor name -> position in shards; sorted by name, each once; empty for a single file.
  std::vector<std::pair<std::string, size_t>> weight_map;
};

// kNotFound if the folder has neither file; the message says what it has instead.
Result<ShardIndex> read_shard_index(const std::string& model_dir);

// source: what messages call the text.
Result<ShardIndex> parse_shard_index(std::string_view source, std::string_view text);

}  // namespace rota
