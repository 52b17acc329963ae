#include "golden/harness.h"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace rota::golden {
namespace {

std::vector<float> copy_of(MatrixView<const float> value) {
  std::vector<float> copy;
  for (int64_t row = 0; row < value.rows(); ++row) {
    const auto from = value.row(row);
    copy.insert(copy.end(), from.begin(), from.end());
  }
  return copy;
}

}  // namespace

void StepResult::hidden(int index, MatrixView<const float> value) {
  hidden_[index] = copy_of(value);
}

void StepResult::moe(int layer, MatrixView<const float> in, MatrixView<const float> out) {
  blocks_[fmt::format("moe.{}.in", layer)] = copy_of(in);
  blocks_[fmt::format("moe.{}.out", layer)] = copy_of(out);
}

void StepResult::moe_parts(int layer, MatrixView<const float> routed,
                           MatrixView<const float> shared) {
  blocks_[fmt::format("moe.{}.routed", layer)] = copy_of(routed);
  blocks_[fmt::format("moe.{}.shared", layer)] = copy_of(shared);
}

void StepResult::mamba(int layer, MatrixView<const float> in, MatrixView<const float> out) {
  blocks_[fmt::format("mamba.{}.in", layer)] = copy_of(in);
  blocks_[fmt::format("mamba.{}.out", layer)] = copy_of(out);
}

void StepResult::router(int layer, std::span<const int32_t> ids, std::span<const float> weights,
                        int64_t top_k) {
  routing_[layer] = {
      .ids = {ids.begin(), ids.end()}, .weights = {weights.begin(), weights.end()}, .top_k = top_k};
}

std::span<const float> StepResult::logits(int64_t row) const {
  return std::span(logits_).subspan(static_cast<size_t>(row * vocab_), static_cast<size_t>(vocab_));
}

Result<std::unique_ptr<Harness>> Harness::load(const std::string& model_dir,
                                               const HarnessOptions& options) {
  auto harness = std::make_unique<Harness>();
  harness->options_ = options;
  ROTA_ASSIGN_OR_RETURN(harness->config_,
                        read_model_config(model_dir, {.hf_overrides = options.hf_overrides}));
  ROTA_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(model_dir));
  harness->checkpoint_ = std::make_unique<Checkpoint>(std::move(checkpoint));
  harness->team_ =
      std::make_unique<ThreadTeam>(ThreadTeamOptions{.threads = options.threads, .pin = false});
  const ModelOptions model_options{.compute = options.compute,
                                   .isa = options.kernels->isa,
                                   .kernels = options.kernels,
                                   .moe = options.moe,
                                   .ranks = options.ranks,
                                   .max_batch_tokens = options.max_batch_tokens,
                                   .max_logit_rows = options.max_batch_tokens,
                                   .max_model_len = options.max_model_len};
  ROTA_ASSIGN_OR_RETURN(harness->model_, load_model(harness->config_, *harness->checkpoint_,
                                                    model_options, *harness->team_));
  ROTA_ASSIGN_OR_RETURN(
      KvCache cache, KvCache::allocate(harness->model_->kv_spec(), options.pages, options.slots));
  harness->cache_ = std::make_unique<KvCache>(std::move(cache));
  harness->free_pages_.resize(static_cast<size_t>(options.pages));
  std::iota(harness->free_pages_.begin(), harness->free_pages_.end(), 0);
  harness->free_slots_.resize(static_cast<size_t>(harness->cache_->slots()));
  std::iota(harness->free_slots_.begin(), harness->free_slots_.end(), 0);
  std::shuffle(harness->free_pages_.begin(), harness->free_pages_.end(), std::mt19937(7));
  return harness;
}

int Harness::new_sequence() {
  Sequence& sequence = sequences_[next_sequence_];
  sequence.tables.resize(model_->kv_spec().groups.size());
  if (!free_slots_.empty()) {
    sequence.slot = free_slots_.back();
    free_slots_.pop_back();
  }
  return next_sequence_++;
}

void Harness::end_sequence(int sequence) {
  for (const auto& table : sequences_.at(sequence).tables) {
    std::copy_if(table.begin(), table.end(), std::back_inserter(free_pages_),
                 [](int32_t page) { return page >= 0; });
  }
  if (const int32_t slot = sequences_.at(sequence).slot; slot >= 0) free_slots_.push_back(slot);
  sequences_.erase(sequence);
}

// Frees what the window has left, then takes pages up to the last position of the step.
Status Harness::reserve(Sequence& sequence, int64_t tokens) {
  const auto& groups = model_->kv_spec().groups;
  const int64_t blocks = (sequence.length + tokens + kKvBlockTokens - 1) / kKvBlockTokens;
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<int32_t>& table = sequence.tables[g];
    const int64_t live = KvSpec::first_live_block(groups[g], sequence.length);
    for (int64_t b = 0; b < std::min(live, std::ssize(table)); ++b) {
      int32_t& page = table[static_cast<size_t>(b)];
      if (page >= 0) free_pages_.push_back(page);
      page = -1;
    }
    while (std::ssize(table) < blocks) {
      if (free_pages_.empty())
        return error(StatusCode::kResourceExhausted, "harness: no page left");
      table.push_back(free_pages_.back());
      free_pages_.pop_back();
    }
  }
  return {};
}

Result<StepResult> Harness::step(std::span<const Piece> pieces,
                                 std::span<const int64_t> tokens_of_group) {
  std::vector<int32_t> ids;
  std::vector<std::vector<std::span<const int32_t>>> tables(pieces.size());
  std::vector<SequenceChunk> chunks;
  for (size_t i = 0; i < pieces.size(); ++i) {
    Sequence& sequence = sequences_.at(pieces[i].sequence);
    ROTA_RETURN_IF_ERROR(reserve(sequence, std::ssize(pieces[i].ids)));
    tables[i].assign(sequence.tables.begin(), sequence.tables.end());
    chunks.push_back({.first_row = std::ssize(ids),
                      .tokens = std::ssize(pieces[i].ids),
                      .first_position = sequence.length,
                      .block_tables = tables[i],
                      .state_slot = sequence.slot});
    ids.insert(ids.end(), pieces[i].ids.begin(), pieces[i].ids.end());
    sequence.length += std::ssize(pieces[i].ids);
  }
  std::vector<int32_t> rows(ids.size());
  std::iota(rows.begin(), rows.end(), 0);

  StepResult result;
  result.rows_ = std::ssize(ids);
  result.vocab_ = config_.vocab;
  result.logits_.resize(ids.size() * static_cast<size_t>(config_.vocab));
  const StepBatch batch{.token_ids = ids,
                        .chunks = chunks,
                        .logit_rows = rows,
                        .trace = &result,
                        .tokens_of_group = tokens_of_group};
  ROTA_RETURN_IF_ERROR(model_->forward(batch, *cache_,
                                       MatrixView<float>(result.logits_.data(), result.rows_,
                                                         Extent(config_.vocab), config_.vocab)));
  return result;
}

Result<StepResult> Harness::step(int sequence, std::span<const int32_t> ids) {
  const Piece piece{sequence, ids};
  return step(std::span(&piece, 1));
}

Result<std::vector<float>> Harness::run_alone(std::span<const int32_t> ids, int64_t chunk) {
  const int sequence = new_sequence();
  std::vector<float> logits;
  while (!ids.empty()) {
    const size_t count = std::min(ids.size(), static_cast<size_t>(chunk));
    ROTA_ASSIGN_OR_RETURN(StepResult result, step(sequence, ids.first(count)));
    logits.insert(logits.end(), result.all_logits().begin(), result.all_logits().end());
    ids = ids.subspan(count);
  }
  end_sequence(sequence);
  return logits;
}

int32_t argmax(std::span<const float> row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

}  // namespace rota::golden
