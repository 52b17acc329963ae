#include <algorithm>

#include "model/mamba2.h"
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
    if (config.attention[layer] == AttentionKind::kNone) continue;
    const bool slides = config.attention[layer] == AttentionKind::kSliding;
    (slides ? sliding : full).layers.push_back(static_cast<int>(layer));
  }
  KvSpec spec;
  spec.shape = {.kv_heads = config.kv_heads,
                .head_dim = config.head_dim,
                .format = compute == Compute::kBf16 ? KvFormat::kBf16 : KvFormat::kFloat32};
  spec.layer_bytes = kernels.kv_page_bytes(spec.shape);
  // Positions are counted in pages even where no layer attends: of one cache line then.
  const bool none = full.layers.empty() && sliding.layers.empty();
  spec.page_bytes = {static_cast<int64_t>(kCacheLine)};
  for (KvGroup* group : {&full, &sliding}) {
    if (group->layers.empty() && !(none && group == &full)) continue;
    spec.page_bytes =
        std::max(spec.page_bytes, spec.layer_bytes * static_cast<int64_t>(group->layers.size()));
    spec.groups.push_back(std::move(*group));
  }
  for (size_t layer = 0; layer < config.layer_kinds.size(); ++layer) {
    const bool recurrent = config.layer_kinds[layer] == LayerKind::kMamba;
    if (recurrent) spec.state.layers.push_back(static_cast<int>(layer));
  }
  if (!spec.state.layers.empty()) spec.state.layer_bytes = mamba2_state_bytes(config.mamba);
  return spec;
}

}  // namespace rota
