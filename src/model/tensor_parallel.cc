#include "model/tensor_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "model/bind.h"
#include "quant/nvfp4.h"

namespace rota {
namespace {

// Why something cannot be cut, or nothing.
using Obstacle = std::optional<std::string>;

bool any_attention(const ModelConfig& config) {
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (config.has_attention(layer)) return true;
  }
  return false;
}

bool any_mamba(const ModelConfig& config) {
  return std::count(config.layer_kinds.begin(), config.layer_kinds.end(), LayerKind::kMamba) > 0;
}

// Whole groups of query heads with their KV head; or parts of groups, each of one KV head.
Obstacle heads_obstacle(const ModelConfig& config, int tp) {
  const bool groups_fit =
      tp <= config.kv_heads ? config.kv_heads % tp == 0 : tp % config.kv_heads == 0;
  if (config.heads % tp == 0 && groups_fit) return std::nullopt;
  return fmt::format("{} attention heads over {} KV heads cannot be cut into {} equal parts",
                     config.heads, config.kv_heads, tp);
}

Obstacle mamba_obstacle(const ModelConfig& config, int tp) {
  if (config.mamba.groups % tp == 0) return std::nullopt;
  return fmt::format(
      "{} Mamba2 heads in {} groups cannot be cut into {} equal parts of whole groups",
      config.mamba.heads, config.mamba.groups, tp);
}

// Inputs of MODULE are cut into parts of `width`: does one of its blocks get in the way?
Obstacle block_obstacle(const ModelConfig& config, const std::string& module, int64_t whole,
                        int64_t width) {
  const LinearFormat format = config.quant.format_of(module);
  const bool nvfp4 = format.code == LinearCode::kNvfp4;
  const int64_t block = nvfp4 ? kNvfp4BlockElements : format.block_in;
  if (block == 0 || width % block == 0) return std::nullopt;
  // A factor alone may cover several parts.
  if (!nvfp4 && (block >= whole || block % width == 0)) return std::nullopt;
  return fmt::format("{}: parts of {} of its {} inputs cut a quantisation block of {}", module,
                     width, whole, block);
}

Obstacle blocks_obstacle(const ModelConfig& config, int tp) {
  const int64_t queries = config.heads * config.head_dim;
  const int64_t inner = config.mamba.inner();
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string mixer = mixer_module(config, layer);
    Obstacle found;
    if (config.has_attention(layer)) {
      found = block_obstacle(config, mixer + ".o_proj", queries, queries / tp);
    } else if (config.has_mamba(layer)) {
      found = block_obstacle(config, mixer + ".out_proj", inner, inner / tp);
    }
    if (found) return found;
  }
  return std::nullopt;
}

Obstacle obstacle(const ModelConfig& config, int tp) {
  Obstacle found;
  if (any_attention(config)) found = heads_obstacle(config, tp);
  if (!found && any_mamba(config)) found = mamba_obstacle(config, tp);
  if (!found && config.vocab < tp) {
    found = fmt::format("a vocabulary of {} cannot be cut into {} parts", config.vocab, tp);
  }
  return found ? found : blocks_obstacle(config, tp);
}

std::string sizes_that_work(const ModelConfig& config) {
  const int64_t most = any_attention(config) ? config.heads : config.mamba.groups;
  std::string sizes = "1";
  for (int tp = 2; tp <= most; ++tp) {
    if (!obstacle(config, tp)) sizes += fmt::format(", {}", tp);
  }
  return sizes;
}

}  // namespace

Status check_tensor_parallel(const ModelConfig& config, int tp) {
  if (tp < 1) return invalid_argument("tensor parallel size {}: expected at least 1", tp);
  if (tp == 1) return {};
  const Obstacle found = obstacle(config, tp);
  if (!found) return {};
  return invalid_argument("tensor parallel size {}: {}; sizes that work for this model: {}", tp,
                          *found, sizes_that_work(config));
}

TensorShard tensor_shard(const ModelConfig& config, int tp, int rank) {
  TensorShard shard;
  shard.rank = rank;
  const int64_t share = config.heads / config.kv_heads;  // query heads of one KV head
  shard.query_heads = shard_range(config.heads, tp <= config.kv_heads ? share : 1, tp, rank);
  if (shard.query_heads.size() > 0) {
    shard.kv_heads = {.begin = shard.query_heads.begin / share,
                      .end = (shard.query_heads.end - 1) / share + 1};
  }
  if (config.mamba.heads > 0) {
    const int64_t heads = config.mamba.heads / config.mamba.groups;
    const ShardRange groups = shard_range(config.mamba.groups, 1, tp, rank);
    shard.mamba_groups = groups;
    shard.mamba_heads = {.begin = groups.begin * heads, .end = groups.end * heads};
  }
  shard.vocabulary = vocabulary_of(config, tp, rank);
  return shard;
}

ShardRange vocabulary_of(const ModelConfig& config, int tp, int rank) {
  return {.begin = config.vocab * rank / tp, .end = config.vocab * (rank + 1) / tp};
}

ModelConfig config_of_rank(const ModelConfig& config, const TensorShard& shard) {
  ModelConfig here = config;
  here.heads = shard.query_heads.size();
  here.kv_heads = shard.kv_heads.size();
  here.mamba.heads = shard.mamba_heads.size();
  here.mamba.groups = shard.mamba_groups.size();
  return here;
}

}  // namespace rota
