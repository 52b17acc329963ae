#include "model/decoder.h"

#include <algorithm>
#include <iterator>

namespace rota {
namespace {

// The routing of one layer, told to whoever looks at the model.
class RouterTrace : public MoeTrace {
 public:
  RouterTrace(ForwardTrace& trace, int layer) : trace_(trace), layer_(layer) {}
  void routed(const TopK& topk) override {
    const auto count = static_cast<size_t>(topk.tokens * topk.k);
    trace_.router(layer_, {topk.ids, count}, {topk.weights, count}, topk.k);
  }

 private:
  ForwardTrace& trace_;
  int layer_;
};

}  // namespace

std::vector<std::vector<int64_t>> Decoder::expert_token_counts() const {
  std::vector<std::vector<int64_t>> counts;
  for (const Layer& layer : layers_) {
    const auto served = layer.moe.served();
    counts.emplace_back(served.begin(), served.end());
  }
  return counts;
}

Status Decoder::forward(const StepBatch& batch, KvCache& cache, MatrixView<float> logits) {
  ROTA_RETURN_IF_ERROR(check_batch(batch, kv_spec_,
                                   {.vocab = config_.vocab,
                                    .max_tokens = options_.max_batch_tokens,
                                    .max_logit_rows = options_.max_logit_rows,
                                    .max_model_len = options_.max_model_len,

                                    .pages = cache.pages(),
                                    .slots = cache.slots()}));
  if (logits.rows() < std::ssize(batch.logit_rows) || logits.width().logical() != config_.vocab) {
    return invalid_argument("logits [{}, {}], expected [{}, {}]", logits.rows(),
                            logits.width().logical(), batch.logit_rows.size(), config_.vocab);
  }
  const int64_t tokens = std::ssize(batch.token_ids);
  embed(batch.token_ids);
  if (batch.trace != nullptr) batch.trace->hidden(0, workspace_.residual.rows_view(tokens));
  const AttentionStep step = begin_step(batch, cache);
  for (int64_t layer = 0; layer < std::ssize(layers_); ++layer) {
    ROTA_RETURN_IF_ERROR(run_layer(layer, step, batch.trace));
  }
  write_logits(batch, logits);
  return {};
}

void Decoder::embed(std::span<const int32_t> token_ids) {
  const MatrixView<float> residual = workspace_.residual.rows_view(std::ssize(token_ids));
  exec_.for_rows(residual.rows(), [&](int64_t first, int64_t count) {
    for (int64_t row = first; row < first + count; ++row) {
      const int64_t id = token_ids[static_cast<size_t>(row)];
      const std::byte* data = embedding_.data + (embedding_.row_stride * id).count;
      exec_.kernels().bf16_to_float(
          {reinterpret_cast<const Bf16*>(data), static_cast<size_t>(config_.hidden)},
          residual.row(row));
    }
  });
}

AttentionStep Decoder::begin_step(const StepBatch& batch, KvCache& cache) {
  layout_.set(batch.chunks);
  AttentionStep step{.exec = &exec_,
                     .chunks = batch.chunks,
                     .layout = &layout_,
                     .cache = &cache,
                     .workspace = &workspace_.attention};
  if (!rope_) return step;
  const int64_t half = rope_->half_dim();
  const auto cos = workspace_.cos.view().row(0);
  const auto sin = workspace_.sin.view().row(0);
  exec_.for_rows(std::ssize(batch.token_ids), [&](int64_t first, int64_t count) {
    const auto offset = static_cast<size_t>(first * half);
    rope_->fill(layout_.positions().subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                cos.subspan(offset), sin.subspan(offset));
  });
  step.cos = cos.data();
  step.sin = sin.data();
  return step;
}

void Decoder::norm(MatrixView<const float> x, const Bf16* weight, MatrixView<float> out) {
  exec_.for_rows(x.rows(), [&](int64_t first, int64_t count) {
    exec_.kernels().rms_norm({.x = x.row_range(first, count),
                              .weight = weight,
                              .eps = static_cast<float>(config_.rms_eps),
                              .out = out.row_range(first, count)});
  });
}

Status Decoder::run_layer(int64_t index, const AttentionStep& step, ForwardTrace* trace) {
  const Layer& layer = layers_[static_cast<size_t>(index)];
  const int64_t tokens = std::ssize(step.layout->positions());
  const MatrixView<float> residual = workspace_.residual.rows_view(tokens);
  const MatrixView<float> normed = workspace_.normed.rows_view(tokens);
  norm(residual, layer.attention_norm, normed);
  layer.attention.run(step, normed, residual);

  norm(residual, layer.moe_norm, normed);
  const MatrixView<float> moe_out = workspace_.moe_out.rows_view(tokens);
  if (trace == nullptr) {
    ROTA_RETURN_IF_ERROR(moe_->run(layer.moe, normed, moe_out));
  } else {
    RouterTrace router(*trace, static_cast<int>(index));
    ROTA_RETURN_IF_ERROR(moe_->run(layer.moe, normed, moe_out, &router));
    trace->moe(static_cast<int>(index), normed, moe_out);
  }
  exec_.for_rows(tokens, [&](int64_t first, int64_t count) {
    exec_.kernels().add(residual.row_range(first, count), moe_out.row_range(first, count));
  });
  if (trace != nullptr) trace->hidden(static_cast<int>(index) + 1, residual);
  return {};
}

void Decoder::write_logits(const StepBatch& batch, MatrixView<float> logits) {
  const int64_t tokens = std::ssize(batch.token_ids);
  const MatrixView<float> residual = workspace_.residual.rows_view(tokens);
  if (batch.trace != nullptr) {
    const MatrixView<float> normed = workspace_.normed.rows_view(tokens);
    norm(residual, final_norm_, normed);
    batch.trace->hidden(static_cast<int>(config_.layers) + 1, normed);
  }
  if (batch.logit_rows.empty()) return;
  const MatrixView<float> selected = workspace_.selected.rows_view(std::ssize(batch.logit_rows));
  exec_.for_items(selected.rows(), [&](int64_t item, int) {
    const int64_t row = batch.logit_rows[static_cast<size_t>(item)];
    exec_.kernels().rms_norm({.x = residual.row_range(row, 1),
                              .weight = final_norm_,
                              .eps = static_cast<float>(config_.rms_eps),
                              .out = selected.row_range(item, 1)});
  });
  const PreparedInput input =
      exec_.prepare(selected, lm_head_->in(), lm_head_->layout(), workspace_.lm_head_input.data());
  lm_head_->run(exec_, input, logits);
}

}  // namespace rota
