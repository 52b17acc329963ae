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
  void parts(MatrixView<const float> routed, MatrixView<const float> shared) override {
    trace_.moe_parts(layer_, routed, shared);
  }

 private:
  ForwardTrace& trace_;
  int layer_;
};

}  // namespace

std::vector<const MoeLayer*> Decoder::moe_layers() const {
  std::vector<const MoeLayer*> layers;
  for (const Block& block : blocks_) {
    if (const auto* moe = std::get_if<MoeLayer>(&block.mixer)) layers.push_back(moe);
  }
  return layers;
}

std::vector<MoeLayer*> Decoder::mixtures() {
  std::vector<MoeLayer*> layers;
  for (Block& block : blocks_) {
    if (auto* moe = std::get_if<MoeLayer>(&block.mixer)) layers.push_back(moe);
  }
  return layers;
}

std::vector<std::vector<int64_t>> Decoder::expert_token_counts() const {
  std::vector<std::vector<int64_t>> counts;
  for (const MoeLayer* layer : moe_layers()) {
    const auto served = layer->served();
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
                                    .slots = cache.slots(),
                                    .min_tokens = options_.ranks.shape().ranks() > 1 ? 0 : 1,
                                    .groups = options_.ranks.shape().dp,
                                    .group = options_.ranks.data_rank()}));
  if (logits.rows() < std::ssize(batch.logit_rows) || logits.width().logical() != config_.vocab) {
    return invalid_argument("logits [{}, {}], expected [{}, {}]", logits.rows(),
                            logits.width().logical(), batch.logit_rows.size(), config_.vocab);
  }
  const int64_t tokens = std::ssize(batch.token_ids);
  if (options_.ranks.shape().dp > 1) workspace_.moe->begin_step(batch.tokens_of_group);
  embed(batch.token_ids);
  if (batch.trace != nullptr) batch.trace->hidden(0, workspace_.residual.rows_view(tokens));
  const Step step = begin_step(batch, cache);
  for (const Block& block : blocks_) ROTA_RETURN_IF_ERROR(run_block(block, step));
  return write_logits(batch, logits);
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

Decoder::Step Decoder::begin_step(const StepBatch& batch, KvCache& cache) {
  layout_.set(batch.chunks);
  Step step{.tokens = std::ssize(batch.token_ids),
            .attention = {.exec = &exec_,
                          .chunks = batch.chunks,
                          .layout = &layout_,
                          .cache = &cache,
                          .workspace = &workspace_.attention,
                          .tensor = options_.ranks.tensor},
            .mamba = {.exec = &exec_,
                      .chunks = batch.chunks,
                      .cache = &cache,
                      .workspace = workspace_.mamba ? &*workspace_.mamba : nullptr,
                      .tensor = options_.ranks.tensor},
            .trace = batch.trace};
  if (rope_) fill_angles(step.attention);
  return step;
}

void Decoder::fill_angles(AttentionStep& step) {
  const int64_t half = rope_->half_dim();
  const auto cos = workspace_.cos.view().row(0);
  const auto sin = workspace_.sin.view().row(0);
  exec_.for_rows(std::ssize(layout_.positions()), [&](int64_t first, int64_t count) {
    const auto offset = static_cast<size_t>(first * half);
    rope_->fill(layout_.positions().subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                cos.subspan(offset), sin.subspan(offset));
  });
  step.cos = cos.data();
  step.sin = sin.data();
}

void Decoder::norm(MatrixView<const float> x, const Bf16* weight, MatrixView<float> out) {
  exec_.for_rows(x.rows(), [&](int64_t first, int64_t count) {
    exec_.kernels().rms_norm({.x = x.row_range(first, count),
                              .weight = weight,
                              .eps = static_cast<float>(config_.rms_eps),
                              .out = out.row_range(first, count)});
  });
}

// x += mixer(norm(x)). Without a token only mixture layers are met by other ranks.
Status Decoder::run_block(const Block& block, const Step& step) {
  if (step.tokens == 0 && !std::holds_alternative<MoeLayer>(block.mixer)) return {};
  const MatrixView<float> residual = workspace_.residual.rows_view(step.tokens);
  const MatrixView<float> normed = workspace_.normed.rows_view(step.tokens);
  norm(residual, block.norm, normed);
  if (const auto* attention = std::get_if<AttentionBlock>(&block.mixer)) {
    ROTA_RETURN_IF_ERROR(attention->run(step.attention, normed, residual));
  } else if (const auto* mamba = std::get_if<Mamba2Block>(&block.mixer)) {
    ROTA_ASSIGN_OR_RETURN(const auto out, mamba->run(step.mamba, normed, residual));
    if (step.trace != nullptr) step.trace->mamba(block.layer, normed, out);
  } else {
    ROTA_RETURN_IF_ERROR(run_moe(block.layer, std::get<MoeLayer>(block.mixer), step));
  }
  if (step.trace != nullptr && block.ends_layer) step.trace->hidden(block.layer + 1, residual);
  return {};
}

Status Decoder::run_moe(int layer, const MoeLayer& moe, const Step& step) {
  const MatrixView<float> residual = workspace_.residual.rows_view(step.tokens);
  const MatrixView<float> normed = workspace_.normed.rows_view(step.tokens);
  const MatrixView<float> out = workspace_.moe_out.rows_view(step.tokens);
  if (step.trace == nullptr) {
    ROTA_RETURN_IF_ERROR(workspace_.moe->run(moe, normed, out));
  } else {
    RouterTrace router(*step.trace, layer);
    ROTA_RETURN_IF_ERROR(workspace_.moe->run(moe, normed, out, &router));
    step.trace->moe(layer, normed, out);
  }
  exec_.for_rows(step.tokens, [&](int64_t first, int64_t count) {
    exec_.kernels().add(residual.row_range(first, count), out.row_range(first, count));
  });
  return {};
}

Status Decoder::write_logits(const StepBatch& batch, MatrixView<float> logits) {
  const int64_t tokens = std::ssize(batch.token_ids);
  const MatrixView<float> residual = workspace_.residual.rows_view(tokens);
  if (batch.trace != nullptr) {
    const MatrixView<float> normed = workspace_.normed.rows_view(tokens);
    norm(residual, final_norm_, normed);
    batch.trace->hidden(static_cast<int>(config_.layers) + 1, normed);
  }
  if (batch.logit_rows.empty()) return {};
  const MatrixView<float> selected = workspace_.selected.rows_view(std::ssize(batch.logit_rows));
  exec_.for_items(selected.rows(), [&](int64_t item, int) {
    const int64_t row = batch.logit_rows[static_cast<size_t>(item)];
    exec_.kernels().rms_norm({.x = residual.row_range(row, 1),
                              .weight = final_norm_,
                              .eps = static_cast<float>(config_.rms_eps),
                              .out = selected.row_range(item, 1)});
  });
  return run_lm_head(selected, logits.row_range(0, selected.rows()));
}

Status Decoder::run_lm_head(MatrixView<const float> selected, MatrixView<float> logits) {
  const PreparedInput input =
      exec_.prepare(selected, lm_head_->in(), lm_head_->layout(), workspace_.lm_head_input.data());
  if (!workspace_.logits) {
    lm_head_->run(exec_, input, logits);
    return {};
  }
  lm_head_->run(exec_, input, workspace_.logits->own_columns(logits));
  return workspace_.logits->run(exec_, logits, *options_.ranks.tensor);
}

}  // namespace rota
