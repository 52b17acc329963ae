#include "engine/engine_core.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/log.h"
#include "engine/engine_stats.h"
#include "engine/random.h"
#include "moe/weights.h"
#include "platform/mapped_file.h"

namespace rota {
namespace {

constexpr double kSecondsBetweenFaultWarnings = 10;

SchedulerLimits scheduler_limits(const LoadedEngine& loaded) {
  return {.max_num_seqs = loaded.options.max_num_seqs,
          .max_num_batched_tokens = loaded.options.max_num_batched_tokens,
          .max_prompt_logprob_rows = loaded.max_logit_rows - loaded.options.max_num_seqs};
}

StepPlanLimits plan_limits(const LoadedEngine& loaded) {
  return {.max_tokens = loaded.options.max_num_batched_tokens,
          .max_sequences = loaded.options.max_num_seqs,
          .max_logit_rows = loaded.max_logit_rows,
          .kv_groups = static_cast<int64_t>(loaded.model->kv_spec().groups.size())};
}

StateSlots state_slots(const LoadedEngine& loaded) {
  KvCache* cache = loaded.cache.get();
  return {.slots = cache->slots(),
          .snapshot_interval = loaded.options.mamba_block_size,
          .copy = [cache](int32_t from, int32_t to) { cache->copy_state(from, to); }};
}

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

void sort_unique(std::vector<int32_t>& tokens) {
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
}

// Only for tokens of a vocabulary: an end token beyond it can never be generated, nor banned.
void add_end_tokens(const EngineInfo& info, std::vector<int32_t>& tokens) {
  for (const int32_t token : info.eos_token_ids) {
    if (token >= 0 && token < info.vocab_size) tokens.push_back(token);
  }
}

}  // namespace

Result<std::unique_ptr<EngineCore>> EngineCore::make(LoadedEngine& loaded,
                                                     FaultCounter page_faults) {
  ROTA_ASSIGN_OR_RETURN(Matrix<float> logits, Matrix<float>::allocate(loaded.max_logit_rows,
                                                                      Extent(loaded.config.vocab)));
  std::unique_ptr<EngineCore> core(
      new EngineCore(loaded, std::move(logits), std::move(page_faults)));
  ROTA_RETURN_IF_ERROR(core->warm_up());
  ROTA_RETURN_IF_ERROR(core->capture_steps());
  core->forget_warm_up();
  return core;
}

EngineCore::EngineCore(LoadedEngine& loaded, Matrix<float> logits, FaultCounter page_faults)
    : loaded_(loaded),
      info_(loaded.info()),
      kv_(loaded.model->kv_spec(), loaded.cache->pages(), loaded.options.enable_prefix_caching,
          state_slots(loaded)),
      scheduler_(scheduler_limits(loaded), kv_),
      plan_(plan_limits(loaded)),
      sampler_(info_.vocab_size, loaded.team->size()),
      logits_(std::move(logits)),
      results_(static_cast<size_t>(loaded.max_logit_rows)),
      captures_(capture_sizes(loaded.options).value()),
      stats_(empty_stats()),
      page_faults_(std::move(page_faults)) {
  traced_rows_.reserve(results_.size());
  trace_of_use_.reserve(results_.size());
  gone_.reserve(static_cast<size_t>(loaded.options.max_num_seqs));
  output_.tokens.reserve(1);
}

// A short prompt and two tokens, so that buffers, threads and pages are there for the first
// request. Nothing of it stays in the prefix cache: it fills no block.
Status EngineCore::warm_up() {
  EngineRequest request;
  request.id = "warm-up";
  const int64_t tokens = std::clamp<int64_t>(info_.max_model_len - 2, 1, 16);
  std::vector<int32_t> prompt;
  prompt.reserve(static_cast<size_t>(tokens));
  for (int64_t i = 0; i < tokens; ++i) {
    prompt.push_back(static_cast<int32_t>(i % info_.vocab_size));
  }
  request.prompt = std::move(prompt);
  request.sampling.max_tokens = std::min<int64_t>(2, info_.max_model_len - tokens);
  request.sampling.ignore_eos = true;
  Status outcome;
  ROTA_RETURN_IF_ERROR(
      add(std::move(request), [&](const RequestOutput& output) { outcome = output.status; }));
  while (has_work()) ROTA_RETURN_IF_ERROR(run_alike().with_context("warm-up step"));
  if (outcome.code() == StatusCode::kDataLoss) {
    log::warning("the warm-up step met damaged weights; requests that need them will fail");
  } else {
    ROTA_RETURN_IF_ERROR(outcome.with_context("warm-up step"));
  }
  return {};
}

// A step of a warm-up: the same requests are on every rank, so all groups have as many tokens.
Status EngineCore::run_alike() {
  const std::vector<int64_t> tokens(static_cast<size_t>(loaded_.ranks.shape().dp), prepare_step());
  return run_step({.tokens_of_group = tokens, .decodes = prepared_decodes_});
}

Status EngineCore::capture_steps() {
  if (captures_.wanted().empty()) return {};
  const Clock::time_point start = Clock::now();
  for (const int64_t size : captures_.wanted()) {
    ROTA_RETURN_IF_ERROR(capture_step(size).with_context(fmt::format("capture of {}", size)));
  }
  log::info("captured {} in {:.2f} s", captures_.describe(), seconds_since(start));
  return {};
}

// Prompts of one token and one token to follow: a step with the shapes of a decode step. All the
// same token, so that no more experts are read than one token needs. What the cache cannot hold at
// once never runs at once: the capture is of as many as do.
Status EngineCore::capture_step(int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    EngineRequest request;
    request.id = fmt::format("capture-{}", i);
    request.prompt = {0};
    request.sampling.max_tokens = std::min<int64_t>(1, info_.max_model_len - 1);
    request.sampling.ignore_eos = true;
    ROTA_RETURN_IF_ERROR(add(std::move(request), [](const RequestOutput&) {}));
  }
  ROTA_RETURN_IF_ERROR(run_alike());
  captures_.add(prepared_tokens_, forward_operations_);
  while (has_work()) ROTA_RETURN_IF_ERROR(run_alike());
  return {};
}

// Nothing of it stays in the statistics.
void EngineCore::forget_warm_up() {
  stats_ = empty_stats();
  stats_.captured_steps = std::ssize(captures_.captures());
  scheduler_.reset_counters();
  arrivals_ = 0;
  for (MoeLayer* layer : loaded_.model->mixtures()) layer->reset_served();
}

Status EngineCore::add(EngineRequest request, OutputFn on_output) {
  ROTA_RETURN_IF_ERROR(check_request(request, info_));
  if (live_.contains(request.id)) {
    return invalid_argument("request id \"{}\" is in use by a running request", request.id);
  }
  ROTA_RETURN_IF_ERROR(check_queue(static_cast<int64_t>(live_.size()), info_));
  try {
    std::unique_ptr<Sequence> sequence = make_sequence(std::move(request), std::move(on_output));
    Sequence& added = *sequence;
    live_.emplace(added.request.id, std::move(sequence));
    scheduler_.add(added);
  } catch (const std::bad_alloc&) {
    return error(StatusCode::kResourceExhausted, "out of memory: the request was not started");
  }
  return {};
}

std::unique_ptr<Sequence> EngineCore::make_sequence(EngineRequest request, OutputFn on_output) {
  auto sequence = std::make_unique<Sequence>();
  Sequence& it = *sequence;
  it.request = std::move(request);
  it.on_output = std::move(on_output);
  it.arrival = arrivals_++;
  it.arrived_at = Clock::now();
  const SamplingParams& sampling = it.request.sampling;
  it.seed = sampling.seed ? static_cast<uint64_t>(*sampling.seed)
                          : drawn_seed(loaded_.options.seed, it.arrival);
  if (!sampling.seed && sampling.temperature >= kGreedyTemperature) {
    log::debug("request {}: seed {}", it.request.id, static_cast<int64_t>(it.seed));
  }
  it.end_tokens = it.banned_tokens = sampling.stop_token_ids;
  add_end_tokens(info_, it.banned_tokens);
  if (!sampling.ignore_eos) add_end_tokens(info_, it.end_tokens);
  sort_unique(it.end_tokens);
  sort_unique(it.banned_tokens);
  it.prompt_tokens = static_cast<int64_t>(it.request.prompt.size());
  it.tokens.reserve(static_cast<size_t>(it.longest()));
  it.tokens.assign(it.request.prompt.begin(), it.request.prompt.end());
  it.tokens.insert(it.tokens.end(), it.request.generated.begin(), it.request.generated.end());
  it.answered = !it.request.generated.empty();  // by the engine that died
  it.first_token_at = it.arrived_at;
  it.request.prompt = it.request.generated = {};  // `tokens` has them
  return sequence;
}

void EngineCore::cancel(std::string_view id) {
  ROTA_CHECK(in_step_ || prepared_.empty(), "nothing is cancelled between the halves of a step");
  const auto found = live_.find(id);
  if (found == live_.end() || found->second->phase == Phase::kFinished) return;
  scheduler_.remove(*found->second);
  gone_.push_back(found->second.get());
  if (!in_step_) reap();
}

void EngineCore::reap() {
  for (const Sequence* sequence : gone_) live_.erase(live_.find(sequence->request.id));
  gone_.clear();
}

void EngineCore::fail_all(const Status& status) {
  prepared_ = {};
  in_step_ = true;
  for (auto& [id, sequence] : live_) {
    if (sequence->phase != Phase::kFinished) finish_with_error(*sequence, status);
  }
  in_step_ = false;
  reap();
}

void EngineCore::step() {
  ROTA_CHECK(alone(), "ranks step together");
  const int64_t tokens = prepare_step();
  if (tokens == 0) return reap();
  const Status status = run_step({.tokens_of_group = {&tokens, 1}, .decodes = prepared_decodes_});
  ROTA_CHECK(status.ok(), status.message());
}

int64_t EngineCore::prepare_step() {
  prepared_ = scheduler_.schedule();
  prepared_tokens_ = 0;
  for (const Chunk& chunk : prepared_) prepared_tokens_ += chunk.tokens;
  prepared_decodes_ = prepared_tokens_ == std::ssize(prepared_);
  return prepared_tokens_;
}

Status EngineCore::run_step(const StepTokens& step) {
  in_step_ = true;
  step_ = step;
  const Clock::time_point start = Clock::now();
  const int64_t faults = page_faults_();
  const std::span<const Chunk> chunks = std::exchange(prepared_, {});
  const StepCapture* const replayed = captures_.find(step);
  Status status = run(chunks);
  if (status.ok() && replayed != nullptr && !alone()) {
    status = check_replay(*replayed, forward_operations_);
  }
  if (!chunks.empty()) count_step(prepared_tokens_, faults, replayed != nullptr);
  stats_.step_seconds += seconds_since(start);
  in_step_ = false;
  reap();
  return status;
}

Status EngineCore::run(std::span<const Chunk> chunks) {
  plan_.build(chunks);
  Status status = forward();
  if (status.ok()) {
    sample_rows();
    advance(chunks);
  } else if (!alone()) {
    return status;
  } else if (chunks.size() > 1) {
    run_each_alone(chunks);
  } else {
    finish_with_error(*chunks.front().sequence, status);
  }
  return {};
}

// Something in the step could not be computed (an expert with damaged weights): only the sequences
// that need it shall fail. Keys and values are simply written again; a state that the failed step
// has moved in some layers is not there any more.
void EngineCore::run_each_alone(std::span<const Chunk> chunks) {
  if (has_states()) {
    scheduler_.repeat_alone();
    return;
  }
  for (const Chunk& chunk : chunks) {
    if (chunk.sequence->phase != Phase::kRunning) continue;
    step_ = {.tokens_of_group = {&chunk.tokens, 1}, .decodes = chunk.tokens == 1};
    ROTA_CHECK(run({&chunk, 1}).ok(), "alone, a failure is the request's");
  }
}

Status EngineCore::forward() {
  StepBatch batch = plan_.batch();
  batch.tokens_of_group = step_.tokens_of_group;
  traced_rows_.clear();
  trace_of_use_.clear();
  for (const LogitUse& use : plan_.uses()) {
    const bool traced = use.samples && use.sequence->request.trace_experts;
    trace_of_use_.push_back(traced ? static_cast<int32_t>(traced_rows_.size()) : -1);
    if (traced) traced_rows_.push_back(use.row);
  }
  if (!traced_rows_.empty()) {
    recorder_.begin(traced_rows_);
    batch.trace = &recorder_;
  }
  const auto rows = static_cast<int64_t>(plan_.uses().size());
  const int64_t before = operations();
  Status status = loaded_.model->forward(batch, *loaded_.cache, logits_.view().row_range(0, rows));
  forward_operations_ = operations() - before;
  // What was cut off the end of a file reads as zeros up to the end of its page: no token of this.
  if (const std::string* file = loaded_.checkpoint->shrunk_file()) end_for_lost_file(*file);
  return status;
}

// Of all communicators of the model, so far.
int64_t EngineCore::operations() const {
  return loaded_.ranks.world->traffic().operations + loaded_.ranks.tensor->traffic().operations;
}

void EngineCore::sample_rows() {
  const std::span<const LogitUse> uses = plan_.uses();
  MatrixView<float> logits = logits_.view();
  loaded_.team->parallel_for(static_cast<int64_t>(uses.size()), [&](int64_t item, int member) {
    const LogitUse& use = uses[static_cast<size_t>(item)];
    const Sequence& sequence = *use.sequence;
    RowResult& result = results_[static_cast<size_t>(item)];
    if (use.samples) {
      const SamplingInput input{.params = &sequence.request.sampling,
                                .history = {.tokens = sequence.tokens,
                                            .prompt_tokens = sequence.prompt_tokens,
                                            .stop_tokens = sequence.banned_tokens},
                                .seed = sequence.seed};
      result.status = sampler_.sample(member, logits.row(item), input, result.sampled);
      return;
    }
    const int64_t next = use.position + 1;
    auto logprobs = sampler_.prompt_logprobs(member, logits.row(item),
                                             sequence.tokens[static_cast<size_t>(next)], next,
                                             sequence.request.sampling.prompt_logprobs);
    result.status = status_of(logprobs);
    if (logprobs.ok()) result.sampled.logprobs = std::move(logprobs).value();
  });
}

// The plan's rows are in the order of the chunks.
void EngineCore::advance(std::span<const Chunk> chunks) {
  size_t use = 0;
  for (const Chunk& chunk : chunks) {
    Sequence& sequence = *chunk.sequence;
    const size_t first_use = use;
    while (use < plan_.uses().size() && plan_.uses()[use].sequence == &sequence) ++use;
    if (sequence.phase != Phase::kRunning) continue;  // cancelled by an output function
    sequence.computed = chunk.end();
    kv_.commit(sequence.kv, sequence.tokens, sequence.computed);
    take_rows(sequence, first_use, use);
  }
}

void EngineCore::take_rows(Sequence& sequence, size_t first_use, size_t last_use) {
  clear_output(sequence);
  for (size_t i = first_use; i < last_use; ++i) {
    RowResult& result = results_[i];
    if (!result.status.ok()) return finish_with_error(sequence, result.status);
    if (plan_.uses()[i].samples) {
      append_token(sequence, i);
    } else {
      if (sequence.prompt_logprobs.empty()) sequence.prompt_logprobs.emplace_back();
      sequence.prompt_logprobs.push_back(std::move(result.sampled.logprobs));
    }
  }
  const bool prompt_alone =
      sequence.request.sampling.max_tokens == 0 && sequence.computed == sequence.prompt_tokens;
  if (prompt_alone) output_.finish_reason = FinishReason::kLength;
  if (output_.tokens.empty() && !prompt_alone) return;  // still in the prompt
  if (!sequence.answered) begin_answer(sequence);
  deliver(sequence);
}

void EngineCore::clear_output(const Sequence& sequence) {
  output_.id = sequence.request.id;
  output_.tokens.clear();
  output_.prompt_logprobs.clear();
  output_.finish_reason = FinishReason::kNone;
  output_.stop_token.reset();
  output_.cached_tokens = sequence.cached_tokens;
  output_.status = Status();
}

void EngineCore::begin_answer(Sequence& sequence) {
  sequence.answered = true;
  sequence.first_token_at = Clock::now();
  stats_.prompt_tokens += sequence.prompt_tokens;
  observe(stats_.queue_time, seconds_between(sequence.arrived_at, sequence.started_at));
  observe(stats_.prefill_time, seconds_between(sequence.started_at, sequence.first_token_at));
  if (!sequence.wants_prompt_logprobs()) return;
  if (sequence.prompt_logprobs.empty()) sequence.prompt_logprobs.emplace_back();
  output_.prompt_logprobs = std::move(sequence.prompt_logprobs);
}

void EngineCore::append_token(Sequence& sequence, size_t use_index) {
  Sampled& sampled = results_[use_index].sampled;
  OutputToken& token = output_.tokens.emplace_back();
  token.id = sampled.token;
  token.logprobs = std::move(sampled.logprobs);
  if (trace_of_use_[use_index] >= 0) {
    const auto experts = recorder_.experts(static_cast<size_t>(trace_of_use_[use_index]));
    token.experts.assign(experts.begin(), experts.end());
  }
  sequence.tokens.push_back(token.id);
  ++stats_.generation_tokens;
  const SamplingParams& sampling = sequence.request.sampling;
  const bool ends =
      sequence.generated() >= sampling.min_tokens &&
      std::binary_search(sequence.end_tokens.begin(), sequence.end_tokens.end(), token.id);
  if (ends) {
    output_.finish_reason = FinishReason::kStop;
    output_.stop_token = token.id;
  } else if (sequence.generated() >= sampling.max_tokens) {
    output_.finish_reason = FinishReason::kLength;
  }
}

// The pages are free before the client hears of the end.
void EngineCore::deliver(Sequence& sequence) {
  if (output_.finish_reason != FinishReason::kNone) {
    if (sequence.answered) {
      observe(stats_.decode_time, seconds_since(sequence.first_token_at));
    }
    scheduler_.remove(sequence);
    gone_.push_back(&sequence);
  }
  sequence.on_output(output_);
}

void EngineCore::finish_with_error(Sequence& sequence, const Status& status) {
  log::warning("request {}: {}", sequence.request.id, status.message());
  clear_output(sequence);
  output_.finish_reason = FinishReason::kError;
  output_.status = status;
  deliver(sequence);
}

void EngineCore::count_step(int64_t tokens, int64_t faults_before, bool replayed) {
  ++stats_.steps;
  ++(replayed ? stats_.replayed_steps : stats_.eager_steps);
  observe(stats_.iteration_tokens, static_cast<double>(tokens));
  const int64_t faults = page_faults_() - faults_before;
  stats_.major_faults += faults;
  const bool warned_just_now =
      last_fault_warning_ && seconds_since(*last_fault_warning_) < kSecondsBetweenFaultWarnings;
  if (faults == 0 || warned_just_now) return;
  last_fault_warning_ = Clock::now();
  log::warning(
      "a step waited for the disk {} times: the weights are not all in memory; free memory, or "
      "keep them there with --weights locked",
      faults);
}

const EngineStats& EngineCore::stats() {
  stats_.running = scheduler_.running();
  stats_.waiting = scheduler_.waiting();
  stats_.kv_usage = static_cast<double>(kv_.used_pages()) / static_cast<double>(kv_.pages());
  stats_.prefix_queries = scheduler_.prefix_queries();
  stats_.prefix_hits = scheduler_.prefix_hits();
  stats_.preemptions = scheduler_.preemptions();
  return stats_;
}

void EngineCore::refresh_expert_tokens() {
  stats_.expert_tokens = loaded_.model->expert_token_counts();
}

}  // namespace rota
