#include "engine/rank_loop.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/log.h"

namespace rota {
namespace {

constexpr double kSecondsBetweenStats = 0.25;
constexpr double kSecondsBetweenExpertCounts = 1;
// Parked ranks meet this often, so that one that has died is missed.
constexpr double kSecondsBetweenLooks = 1;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

// Calls fn(message) for each frame.
template <typename Fn>
Status for_frames(std::string_view frames, Fn&& fn) {
  wire::FrameReader reader;
  reader.append(frames);
  for (;;) {
    ROTA_ASSIGN_OR_RETURN(std::optional<wire::Message> message, reader.next());
    if (!message) return {};
    ROTA_RETURN_IF_ERROR(fn(std::move(*message)));
  }
}

Status unexpected(const wire::Message& message, int rank) {
  return error(StatusCode::kInternal, "message type {} is none that rank {} sends", message.index(),
               rank);
}

}  // namespace

Result<std::unique_ptr<RankLoop>> RankLoop::make(LoadedEngine& loaded, EngineCore& core,
                                                 const RankZero& zero) {
  Communicator& world = *loaded.ranks.world;
  ROTA_CHECK((zero.desk != nullptr) == (world.rank() == 0), "rank 0 alone has a desk");
  ROTA_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> control, world.split(0));
  return std::unique_ptr<RankLoop>(new RankLoop(loaded, core, std::move(control), zero));
}

RankLoop::RankLoop(LoadedEngine& loaded, EngineCore& core, std::unique_ptr<Communicator> control,
                   const RankZero& zero)
    : loaded_(loaded),
      core_(core),
      control_(std::move(control)),
      zero_(zero),
      headers_(*control_, loaded.ranks.shape().tp),
      messages_(*control_),
      bell_(*control_),
      outbox_([this](const wire::Message& message) { messages_.add(0, wire::encode(message)); }),
      before_steps_(communication()) {
  rank_stats_.rank = control_->rank();
  if (loaded.ranks.parallel.experts_move) {
    const ParallelOptions& options = loaded.options.parallel;
    balancer_ =
        std::make_unique<ExpertBalancer>(loaded.model->mixtures(), *control_, *loaded.team,
                                         BalancerOptions{.window = options.eplb_window_size,
                                                         .interval = options.eplb_step_interval});
  }
  if (!first()) return;
  router_ = std::make_unique<RequestRouter>(*zero.desk,
                                            RouterOptions{.groups = loaded.ranks.shape().dp,
                                                          .tp = loaded.ranks.shape().tp,
                                                          .engine_seed = loaded.options.seed});
}

Status RankLoop::run() {
  for (;; ++step_) {
    ROTA_RETURN_IF_ERROR(execute_messages());
    const int64_t tokens = core_.prepare_step();
    const bool stopping = collect_messages();
    ROTA_RETURN_IF_ERROR(headers_.exchange(
        header(tokens, stopping), first() ? messages_.bytes_to() : std::span<const int64_t>()));
    seen();
    if (headers_.any(StepKind::kStop)) return {};
    if (headers_.has_messages()) ROTA_RETURN_IF_ERROR(exchange_messages());
    if (meets_again()) continue;
    if (headers_.any(StepKind::kWork)) {
      ROTA_RETURN_IF_ERROR(step());
    } else if (headers_.all(StepKind::kPark)) {
      ROTA_RETURN_IF_ERROR(park());
    }
  }
}

// All ranks of a group: the same requests before the same step.
Status RankLoop::execute_messages() {
  if (to_execute_.empty()) return {};
  const std::string frames = std::exchange(to_execute_, {});
  return for_frames(frames, [&](wire::Message message) { return execute(std::move(message)); });
}

Status RankLoop::execute(wire::Message message) {
  if (auto* submit = std::get_if<wire::Submit>(&message)) {
    add_request(std::move(submit->request));
  } else if (const auto* cancel = std::get_if<wire::Cancel>(&message)) {
    core_.cancel(cancel->id);
  } else {
    return unexpected(message, 0);
  }
  return {};
}

void RankLoop::add_request(EngineRequest request) {
  RequestOutput refused;
  refused.id = request.id;
  refused.finish_reason = FinishReason::kError;
  const EngineClient::OutputFn answer = this->answer();
  refused.status = core_.add(std::move(request), answer);
  if (!refused.status.ok()) answer(refused);
}

// Where a group's outputs go: its first rank tells them.
EngineClient::OutputFn RankLoop::answer() {
  if (first()) {
    return [this](const RequestOutput& output) {
      delivered_ = true;
      router_->deliver(output);
    };
  }
  if (!leads_group()) return [](const RequestOutput&) {};
  return [this](const RequestOutput& output) { outbox_.add(output); };
}

// True: the engine shall end.
bool RankLoop::collect_messages() {
  bool stopping = false;
  if (first()) {
    stopping = !zero_.desk->take(commands_);
    for (RequestDesk::Command& command : commands_) router_->route(command, messages_);
  }
  outbox_.flush();
  if (stats_are_due()) report_stats();
  return stopping;
}

StepHeader RankLoop::header(int64_t tokens, bool stopping) const {
  const bool quiet = !core_.has_work() && messages_.empty() && !stats_changed_;
  StepKind kind = quiet ? StepKind::kPark : StepKind::kDummy;
  if (tokens > 0) kind = StepKind::kWork;
  if (stopping) kind = StepKind::kStop;
  return {.step = step_,
          .kind = kind,
          .tokens = tokens,
          .decodes = core_.prepared_decodes(),
          .message_bytes = messages_.bytes_to()[0],
          .loaded = loaded_.hash,
          .placement = balancer_ ? balancer_->placement() : 0};
}

Status RankLoop::exchange_messages() {
  ROTA_RETURN_IF_ERROR(messages_.exchange(headers_.bytes_from()));
  to_execute_ = messages_.from(0);
  if (!first()) return {};
  for (int rank = 1; rank < control_->ranks(); ++rank) {
    ROTA_RETURN_IF_ERROR(for_frames(messages_.from(rank), [&](wire::Message message) {
      return receive(rank, std::move(message));
    }));
  }
  tell_delivered();
  return {};
}

// All ranks decide alike: what they know of is in the headers.
bool RankLoop::meets_again() {
  met_ = !met_ && headers_.first_has_messages();
  if (met_) core_.put_off_step();
  return met_;
}

Status RankLoop::receive(int rank, wire::Message message) {
  if (const auto* outputs = std::get_if<wire::Outputs>(&message)) {
    delivered_ = true;
    for (const RequestOutput& output : outputs->outputs) router_->deliver(output);
  } else if (auto* heartbeat = std::get_if<wire::Heartbeat>(&message)) {
    router_->note(rank, std::move(heartbeat->stats));
    stats_changed_ = true;  // so that the sum is published
  } else {
    return unexpected(message, rank);
  }
  return {};
}

Status RankLoop::step() {
  ROTA_RETURN_IF_ERROR(core_.run_step(
      {.tokens_of_group = headers_.tokens_of_group(), .decodes = headers_.decodes()}));
  seen();
  const int64_t tokens = headers_.of(control_->rank()).tokens;
  ++(tokens > 0 ? rank_stats_.steps : rank_stats_.dummy_steps);
  rank_stats_.tokens += tokens;
  stats_changed_ = true;
  tell_delivered();
  return balancer_ ? balancer_->after_step() : Status();
}

void RankLoop::tell_delivered() {
  if (std::exchange(delivered_, false)) zero_.step_end();
}

Status RankLoop::park() {
  const double timeout = control_->options().timeout_seconds;
  const double between_looks = std::min(kSecondsBetweenLooks, timeout / 4);
  if (!first()) return bell_.wait(timeout);
  zero_.desk->wait(between_looks);
  return bell_.ring();
}

// Not at every step: a sum over ranks and experts costs more than a header.
bool RankLoop::stats_are_due() const {
  if (!stats_changed_) return false;
  const bool nothing_ran = !headers_.any(StepKind::kWork);
  return nothing_ran || seconds_since(stats_sent_at_) > kSecondsBetweenStats;
}

void RankLoop::report_stats() {
  stats_changed_ = false;
  stats_sent_at_ = Clock::now();
  if (first()) {
    router_->note(0, stats());
    zero_.desk->publish(router_->total());
    delivered_ = true;
    tell_delivered();
  } else {
    messages_.add(0, wire::encode(wire::Heartbeat{.seconds_since_step = 0, .stats = stats()}));
  }
}

RankLoop::Communication RankLoop::communication() const {
  const Communicator &world = *loaded_.ranks.world, &tensor = *loaded_.ranks.tensor;
  return {.traffic = {.bytes = world.traffic().bytes + tensor.traffic().bytes,
                      .operations = world.traffic().operations + tensor.traffic().operations},
          .seconds = world.seconds() + tensor.seconds()};
}

EngineStats RankLoop::stats() {
  const bool nothing_ran = !headers_.any(StepKind::kWork);
  if (nothing_ran || seconds_since(expert_counts_at_) > kSecondsBetweenExpertCounts) {
    refresh_expert_tokens();
    expert_counts_at_ = Clock::now();
  } else {
    stats_changed_ = true;  // so that they are told when nothing runs any more
  }
  EngineStats stats = core_.stats();
  rank_stats_.running = stats.running;
  rank_stats_.waiting = stats.waiting;
  rank_stats_.kv_usage = stats.kv_usage;
  rank_stats_.header_bytes = control_->traffic().bytes;
  rank_stats_.header_seconds = control_->seconds();
  const Communication now = communication();
  rank_stats_.payload_bytes = now.traffic.bytes - before_steps_.traffic.bytes;
  rank_stats_.operations = now.traffic.operations - before_steps_.traffic.operations;
  rank_stats_.communication_seconds = now.seconds - before_steps_.seconds;
  rank_stats_.step_seconds = stats.step_seconds;
  stats.ranks = {rank_stats_};
  if (first() && balancer_) stats.balance = balancer_->stats();
  return stats;
}

void RankLoop::refresh_expert_tokens() {
  core_.refresh_expert_tokens();
  if (!loaded_.ranks.shape().expert_parallel) return;
  std::vector<int64_t>& sum = rank_stats_.expert_tokens;
  sum.assign(static_cast<size_t>(loaded_.config.experts), 0);
  for (const MoeLayer* layer : loaded_.model->mixtures()) {
    const std::vector<int64_t> served = layer->all_served_here();
    std::ranges::transform(sum, served, sum.begin(), std::plus<>());
  }
}

void RankLoop::seen() {
  if (first()) *zero_.last_step_ns = now_ns();
}

Status serve_rank(LoadedEngine& loaded) {
  ROTA_ASSIGN_OR_RETURN(const std::unique_ptr<EngineCore> core, EngineCore::make(loaded));
  ROTA_ASSIGN_OR_RETURN(const std::unique_ptr<RankLoop> loop, RankLoop::make(loaded, *core));
  return loop->run();
}

}  // namespace rota
