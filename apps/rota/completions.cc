#include "rota/completions.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "engine/text_generation.h"

namespace rota {
namespace {

// What the engine says, from its thread to the one that waits; outlives whoever asks.
class Inbox {
 public:
  void push(size_t prompt, const RequestOutput& output) {
    const std::lock_guard lock(mutex_);
    outputs_.emplace_back(prompt, output);
    changed_.notify_one();
  }
  std::pair<size_t, RequestOutput> pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !outputs_.empty(); });
    std::pair<size_t, RequestOutput> first = std::move(outputs_.front());
    outputs_.pop_front();
    return first;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<size_t, RequestOutput>> outputs_;
};

class Batch {
 public:
  Batch(EngineClient& engine, const std::shared_ptr<const Tokenizer>& tokenizer,
        const CompletionOptions& options, std::vector<TokenIds> prompts)
      : engine_(engine), tokenizer_(tokenizer), options_(options), prompts_(std::move(prompts)) {}
  ~Batch() {
    for (const auto& [prompt, text] : running_) engine_.cancel(id_of(prompt));
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  Status run(const std::function<Status(const Completion&)>& on_done) {
    for (;;) {
      while (next_ < prompts_.size() && static_cast<int64_t>(running_.size()) < options_.at_once) {
        ROTA_RETURN_IF_ERROR(submit(next_++));
      }
      if (running_.empty()) return {};
      const auto [prompt, output] = inbox_->pop();
      ROTA_ASSIGN_OR_RETURN(const std::optional<Completion> done, take(prompt, output));
      if (done) ROTA_RETURN_IF_ERROR(on_done(*done));
    }
  }

 private:
  static std::string id_of(size_t prompt) { return fmt::format("prompt-{}", prompt); }

  Status submit(size_t prompt) {
    ROTA_ASSIGN_OR_RETURN(TextStream text, TextStream::make(tokenizer_, {.stop = options_.stop,
                                                                         .continues_text = true}));
    EngineRequest request;
    request.id = id_of(prompt);
    request.prompt = std::move(prompts_[prompt]);
    request.sampling = options_.sampling;
    ROTA_RETURN_IF_ERROR(engine_.submit(
        std::move(request),
        [inbox = inbox_, prompt](const RequestOutput& output) { inbox->push(prompt, output); }));
    running_.emplace(prompt, std::move(text));
    return {};
  }

  // The completion, when this output is its end.
  Result<std::optional<Completion>> take(size_t prompt, const RequestOutput& output) {
    const auto found = running_.find(prompt);
    if (found == running_.end()) return std::optional<Completion>();  // said after its end
    if (output.finish_reason == FinishReason::kError) return output.status;
    TextStream& text = found->second;
    const TextDelta delta = text.add(output);
    if (delta.finish_reason == FinishReason::kNone) return std::optional<Completion>();
    if (delta.cancel_request) engine_.cancel(id_of(prompt));
    Completion done{prompt, text.text(), delta.finish_reason, text.completion_tokens()};
    running_.erase(found);
    return std::optional<Completion>(std::move(done));
  }

  EngineClient& engine_;
  const std::shared_ptr<const Tokenizer>& tokenizer_;
  const CompletionOptions& options_;
  std::vector<TokenIds> prompts_;
  size_t next_ = 0;
  std::map<size_t, TextStream> running_;
  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
};

}  // namespace

Status complete_all(EngineClient& engine, const std::shared_ptr<const Tokenizer>& tokenizer,
                    const CompletionOptions& options, std::vector<TokenIds> prompts,
                    const std::function<Status(const Completion&)>& on_done) {
  return Batch(engine, tokenizer, options, std::move(prompts)).run(on_done);
}

}  // namespace rota
