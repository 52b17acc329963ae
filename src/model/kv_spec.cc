#include <algorithm>

#include "model/model.h"

namespace rota {

Bytes KvSpec::bytes_per_token() const {
  int64_t growing = 0;
  for (const KvGroup& group : groups) growing += group.window == 0 ? 1 : 0;
  return {page_bytes.count * growing / kKvBlockTokens};
}

int64_t KvSpec::first_live_block(const KvGroup& group, int64_t position) {
  if (group.window == 0) return 0;
  return std::max<int64_t>(0, position - group.window + 1) / kKvBlockTokens;
}

KvSpec make_kv_spec(const ModelConfig& config, Compute compute, const KernelTable& kernels) {
  KvGroup full;
  KvGroup sliding{.window = config.sliding_window, .layers = {}};
  for (size_t layer = 0; layer < config.attention.size(); ++layer) {
    const bool slides = config.attention[layer] == AttentionKind::kSliding;
    (slides ? sliding : full).layers.push_back(static_cast<int>(layer));
  }
  KvSpec spec;
  spec.shape = {.kv_heads = config.kv_heads,
                .head_dim = config.head_dim,
                .format = compute == Compute::kBf16 ? KvFormat::kBf16 : KvFormat::kFloat32};
  spec.layer_bytes = kernels.kv_page_bytes(spec.shape);
  for (KvGroup* group : {&full, &sliding}) {
    if (group->layers.empty()) continue;
    spec.page_bytes =
        std::max(spec.page_bytes, spec.layer_bytes * static_cast<int64_t>(group->layers.size()));
    spec.groups.push_back(std::move(*group));
  }
  return spec;
}

}  // namespace rota
